"""How a module is made of somebody's class, again and again, with other sizes.

Each argument of the constructor gets a value by what its name means, by its annotation or by its
default. A config is made of its own class where there is one, and else a stand-in answers what is
read from it, by name, and remembers it.
"""

from __future__ import annotations

import ast
import copy
import math
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from attnbench.styles import (
    DownloadError,
    TooLargeError,
    TooLongError,
    arguments,
    causes,
    confined,
    in_one_line,
)
from attnbench_plugins.adapters.making.groups import with_groups
from attnbench_plugins.adapters.making.maker import CALLED, Maker, MakingError, UnansweredError
from attnbench_plugins.adapters.making.widths import VARIED, Widths
from attnbench_plugins.adapters.refusing import not_made

_TRIES = 60


@dataclass(eq=False)
class Recipe:
    """How a class is made.

    Args:
        target: a class, or a module, of which copies are made.
        guessed: arguments whose names say nothing, and which were found by trying.
        base: sizes with which it can be made.
        on_cpu: whether its constructor asks for a GPU, which was done on the CPU.
        sleeps: whether weights of it start at zero or near it.
        line: Python that makes the same for a ``size``, which was run; ``""`` if there is none.
        answers: which of the guesses was right for each name that says nothing.
        written: what somebody wrote in place of all this.
    """

    target: Any
    guessed: tuple[str, ...] = ()
    base: Widths = field(default_factory=Widths)
    on_cpu: bool = False
    sleeps: bool = False
    line: str = ""
    answers: dict[str, int] = field(default_factory=dict)
    written: str = ""

    def __call__(self, sizes: Widths | None = None) -> nn.Module:
        """A new module for these sizes, in evaluation."""
        if isinstance(self.target, nn.Module):
            return copy.deepcopy(self.target)
        if self.written:
            return _evaluated(self.written, self.target, sizes or self.base)
        return Maker(self.target, sizes or self.base, dict(self.answers)).make()


def recipe_of(target: Any) -> Recipe:
    """How a class is made, found by trying; of a module, how it is copied.

    Raises:
        MakingError: it cannot be made; the message says why in a line or two.
    """
    if isinstance(target, nn.Module):
        return Recipe(target, sleeps=_sleeps(target))
    failure: BaseException | None = None
    tried: list[str] = []
    answers: dict[str, int] = {}
    ways = [(sizes, False) for sizes in _STARTS]
    unset = [a.role for a in arguments(target, "constructor") or () if a.default is None]
    if any(role in VARIED or role in CALLED for role in unset):
        ways.append((_STARTS[0], True))
    for sizes, is_filled in ways:
        answers.clear()
        for _ in range(_TRIES):
            maker = Maker(target, sizes, answers, is_filled)
            try:
                made = maker.make()
            except UnansweredError as error:
                answers[error.name], failure = 0, failure or error
                continue
            except (Exception, SystemExit) as error:  # whatever a constructor raises
                hopeless = next((e for e in causes(error) if isinstance(e, _HOPELESS)), None)
                if isinstance(hopeless, TooLargeError) and tried:
                    break  # of these sizes; what others raised says more
                if hopeless is not None:
                    raise MakingError(not_made(target, hopeless, (), maker.guessed)) from error
                failure = error if isinstance(failure, UnansweredError | None) else failure
                tried.append(maker.source)
                if not maker.advance():
                    break
                continue
            found = maker.guessed, sizes, maker.on_cpu, _sleeps(made)
            recipe = Recipe(target, *found, answers={**answers})
            recipe.line = _proved(recipe, maker.source)
            return recipe
    assert failure is not None
    raise MakingError(not_made(target, failure, tried, maker.guessed)) from failure


def recipe_from(written: str, target: Any) -> Recipe:
    """The recipe that somebody wrote: ``Attention(Config(n_embd=E, n_head=2))``.

    Args:
        written: Python that makes the module; ``E`` or ``size`` is its number of features, and
            ``H`` its number of heads. What it does not name stays as it is.
        target: the class, whose module's names it may use.

    Raises:
        MakingError: it cannot be run, or gives no module.
    """
    try:
        names = {n.id for n in ast.walk(ast.parse(written.strip())) if isinstance(n, ast.Name)}
    except SyntaxError as error:
        raise MakingError(
            f"--make {written!r} is no expression of Python ({error.msg}); write it like "
            '--make "Attention(Config(n_embd=E, n_head=2))".'
        ) from None
    failure = None
    for sizes in _STARTS if names & {"E", "size", "H"} else _STARTS[:1]:
        recipe = Recipe(target, base=sizes, line=written, written=written)
        try:
            recipe.sleeps = _sleeps(recipe())
            return recipe
        except (Exception, SystemExit) as error:  # whatever a constructor raises
            failure = error
    raise MakingError(f"--make {written!r}: {in_one_line(failure)}") from failure


def _evaluated(written: str, target: Any, sizes: Widths) -> nn.Module:
    """The module that a line of Python makes, in evaluation."""
    space = {**vars(sys.modules.get(target.__module__, SimpleNamespace()))}
    space |= {"types": sys.modules["types"], "torch": torch, "nn": nn}
    space |= {"E": sizes.width, "size": sizes.width, "H": sizes.heads}
    with confined():
        made = with_groups(lambda: eval(written.strip(), space))  # noqa: S307  the user's own line
    if not isinstance(made, nn.Module):
        raise MakingError(f"it gives {type(made).__name__}, not a module")
    made.eval()
    return made


_STARTS = tuple(
    Widths(width, heads)
    for width, heads in [(16, 2), (64, 4), (128, 1), (256, 8), (768, 12), (1024, 16), (2048, 16)]
)
"""Sizes to begin with: most constructors take the first, some want a number of features."""


_HOPELESS = (TooLargeError, DownloadError, TooLongError, RecursionError, ModuleNotFoundError)
"""What other sizes would not avoid."""


def _proved(recipe: Recipe, source: str) -> str:
    """The source, if it makes a module of the same parameters; ``""`` if it does not."""
    try:
        made = _evaluated(source, recipe.target, recipe.base)
    except Exception:  # it is not shown then
        return ""
    return source if _shapes(made) == _shapes(recipe()) else ""


def _shapes(module: nn.Module) -> dict[str, Any]:
    tensors = module.state_dict().items()
    return {name: None if is_lazy(tensor) else tensor.shape for name, tensor in tensors}


def woken(module: nn.Module) -> nn.Module:
    """A module whose weights that start at zero or near it are larger: they would hide the rest."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not _is_small(name, parameter):
                continue
            if parameter.any():
                parameter.mul_(_USUAL / _size(parameter))
            else:
                parameter.normal_(0.0, 0.1)
    return module


_SMALL, _USUAL = 0.25, 3**-0.5
"""Least size of weights that is left as it is, and that of torch's linear layers."""
_SMALL_FACTOR = 0.01
"""The same of factors, as of a feature or of a head's scores, some of which are small by design."""


def _fan(parameter: torch.Tensor) -> int:
    """How many numbers weights sum for one; 1 of factors."""
    return math.prod(parameter.shape[1:])


def _size(parameter: torch.Tensor) -> float:
    """The standard deviation that weights give to what they make of numbers of variance one."""
    return math.sqrt(float(parameter.detach().double().square().mean()) * _fan(parameter))


def _is_small(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter that is trained, and is no bias, is nearly zero."""
    if is_lazy(parameter) or not parameter.requires_grad or not parameter.is_floating_point():
        return False
    if name.endswith("bias"):
        return False
    is_zero = not bool(parameter.any())
    return is_zero or _size(parameter) < (_SMALL if _fan(parameter) > 1 else _SMALL_FACTOR)


def _sleeps(module: nn.Module) -> bool:
    return any(_is_small(*named) for named in module.named_parameters())
