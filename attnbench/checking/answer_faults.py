"""Faults of a subject's answer itself, whichever property is checked."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError, DtypeError, RefusalError, ShapeError
from attnbench.processes.tracebacks import is_own_code
from attnbench.subject.devices import generator_of, other_random_states
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, largest
from attnbench.subject.tracing import line_of

_DROPPING = ("dropout", "bernoulli", "attention")
"""Parts of the names of functions that draw numbers to drop something."""


@dataclass(frozen=True)
class Fault:
    """A fault of an answer.

    Args:
        kind: ``raised``, ``form`` (it returned something else than an output), ``nan``,
            ``changes`` (its input) or ``random`` (the second answer differs).
        text: the fault with its values, in a sentence.
        error: the exception, if it raised.
    """

    kind: Literal["raised", "form", "nan", "changes", "random"]
    text: str
    error: BaseException | None = None


def fault_at(subject: Subject, case: Case) -> Fault | None:
    """The first fault of a subject's answer at a case, in evaluation mode; ``None`` without one."""
    try:
        module, inputs = subject.build(case)
        originals = {name: tensor.clone() for name, tensor in inputs.tensors()}
        first = subject.output(module, inputs)
        change = _change(inputs, originals)
        if change is not None:
            message = f"{subject.name} changes its input: {change}{_written_at(subject, case)}"
            return Fault("changes", message)
        generator = generator_of(case.device)
        state, others = generator.get_state(), other_random_states()
        repeat = subject.output(module, inputs)
        now = other_random_states()
        other = next((name for name in now if others.get(name) != now[name]), "")
        draw = _Draws(generator, other, not torch.equal(state, generator.get_state()))
    except RefusalError:
        raise
    except (Exception, SystemExit) as error:
        kind: Literal["raised", "form"] = "raised"
        if isinstance(error, ShapeError | DtypeError):
            kind = "form"
        return Fault(kind, raised_text(subject, error), error)
    if bool(first.isnan().any()):
        index = _first_index(first.isnan())
        text = f"{subject.name} gives output{list(index)} = nan for finite inputs in {case.dtype}"
        return Fault("nan", text)
    if not other and not torch.equal(first, repeat):
        draw.look_at(lambda: subject.output(module, inputs))
    return _random(subject, first, repeat, draw)


class _Writes(OperationMode):
    """Finds the first operation that changes some tensors, if nothing else has changed them before.

    Attributes:
        line: ``name at file.py:line: source`` of it; ``""`` if unknown.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.pairs, self.line = [(tensor, tensor.clone()) for tensor in tensors], ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._are_changed():  # by no operation of torch
            self.pairs = []
        result = func(*args, **(kwargs or {}))
        if self._are_changed():
            self.line, self.pairs = line_of(func), []
        return result

    def _are_changed(self) -> bool:
        return any(not torch.equal(t.nan_to_num(), old.nan_to_num()) for t, old in self.pairs)


def _written_at(subject: Subject, case: Case) -> str:
    """Words on the operation that changes an input; empty if it is unknown."""
    module, inputs = subject.build(case)
    writes = _Writes([tensor for _, tensor in inputs.tensors()])
    # it may raise only where operations are listened to
    with contextlib.suppress(Exception, SystemExit), torch.no_grad(), writes:
        subject.output(module, inputs)
    return f"\n  it is first changed by {writes.line}" if writes.line else ""


class _DrawnError(Exception):
    """Raised where the first random numbers of a call are drawn."""


class _Draws(TorchFunctionMode):
    """Finds what draws the first random numbers of a call, and where.

    Args:
        generator: torch's own; a function that is given another one draws from that.
        name: what draws, if that is known.
        has_drawn: whether torch's own has drawn.
    """

    def __init__(self, generator: torch.Generator, name: str, has_drawn: bool) -> None:
        super().__init__()
        self.generator, self.name, self.has_drawn, self.line = generator, name, has_drawn, ""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        state = self.generator.get_state()
        result = function(*args, **(kwargs or {}))
        given = (kwargs or {}).get("generator")
        if given is not None or not torch.equal(state, self.generator.get_state()):
            raise _DrawnError(function.__name__)
        return result

    def look_at(self, call: Callable[[], Tensor]) -> None:
        """Call it once more, until it draws."""
        try:
            with self:
                call()
        except Exception as error:
            drawn = error if isinstance(error, _DrawnError) else error.__context__
            if isinstance(drawn, _DrawnError):
                self.name, self.line = str(drawn), source_line_of(drawn) or ""


def raised_text(subject: Subject, error: BaseException) -> str:
    """A text about an exception that a subject raised on a legal input, with its location."""
    if isinstance(error, AttnbenchError):
        return str(error)
    message = str(error).strip().split("\n\n")[0]
    text = f"{subject.name} raised on a legal input: {type(error).__name__}: {message}"
    line = source_line_of(error)
    return f"{text} ({line})" if line else text


def source_line_of(error: BaseException) -> str | None:
    """The file and line of the user's innermost code that raised an exception, if there is any.

    The path is relative if the file is below the current folder, and its name alone if not.
    """
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_own_code(frame.filename)
    ]
    if not frames:
        return None
    path, folder = Path(frames[-1].filename).resolve(), Path.cwd()
    name = path.relative_to(folder) if path.is_relative_to(folder) else path.name
    return f"{name}:{frames[-1].lineno}"


def _first_index(condition: Tensor) -> tuple[int, ...]:
    return tuple(condition.nonzero()[0].tolist())


def _change(inputs: Inputs, originals: dict[str, Tensor]) -> str | None:
    for name, tensor in inputs.tensors():
        original = originals[name]
        difference = (tensor != original) & ~(tensor.isnan() & original.isnan())
        if bool(difference.any()):
            index = _first_index(difference)
            return (
                f"{name}{list(index)} was {original[index].item():.6g} before a call and is "
                f"{tensor[index].item():.6g} after it"
            )
    return None


def _random(subject: Subject, first: Tensor, repeat: Tensor, draw: _Draws) -> Fault | None:
    if first.numel() == 0:
        return None
    # the order of sums on a device may account for a few units in the last place
    gap = (first.detach().double() - repeat.detach().double()).abs()
    difference = (gap > 64 * torch.finfo(first.dtype).eps * largest(first)) & (first != repeat)
    if not bool(difference.any()):
        return None
    index = _first_index(difference)
    values = f"{first[index].item():.6g}, then {repeat[index].item():.6g} for the same call"
    text = f"{subject.name} answers differently the second time: output{list(index)} = {values}"
    if not draw.has_drawn and not draw.name:
        return Fault("random", text)
    by = f" by {draw.name}" * bool(draw.name) + f" ({draw.line})" * bool(draw.line)
    drops = any(part in draw.name for part in _DROPPING)
    what = "drops at random in evaluation" if drops else "draws random numbers"
    return Fault("random", f"{text}, in which it {what}{by}")


def unusable(subject: Subject, device: str = "cpu", dtypes: tuple[str, ...] = ()) -> str | None:
    """The reason why a subject has no usable answer at an ordinary case, or ``None`` if it has one.

    Every property fails for such a subject, so checking them adds no information.
    """
    for case in _ordinary_cases(subject, device, dtypes):
        if subject.unsupported(case) is not None:
            continue
        try:
            fault = fault_at(subject, case)
        except RefusalError:
            continue
        if fault is not None and fault.kind in ("raised", "form", "nan"):
            return fault.text
    return None


def _ordinary_cases(subject: Subject, device: str, dtypes: tuple[str, ...]) -> Iterator[Case]:
    dtype = next((d for d in dtypes if d in subject.dtypes), "float32")
    for mask in ("none", "boolean"):
        case = Case((2, 3), 4, 6, 8, 6, 5, dtype=dtype, device=device, mask=mask)
        yield subject.legal(case)
