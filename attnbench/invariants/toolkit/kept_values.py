"""The attribute of a module in which an earlier call left what makes a later one wrong.

Copies of the module get what a new one has in some of its attributes. Those with which the output
is right, and without any of which it is wrong, are named.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.origins import memory_of
from attnbench.subject.tracing import line_of

_Place = tuple[tuple[str, Any], ...]
"""Steps from a module to what it keeps: the kind of a step, and a name, key or number."""

KEPT = "an earlier call is kept in"
"""The words with which attributes are named."""

_MOST, _NAMED, _DEEPEST = 40, 3, 6
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OF_TORCH = frozenset(vars(nn.Module()))


def kept_values(
    used: nn.Module,
    new: nn.Module,
    is_right: Callable[[nn.Module], bool],
    earlier: Callable[[nn.Module], object] | None = None,
) -> str:
    """A sentence that names what is kept; empty if nothing that is kept explains the output.

    Args:
        used: the module, which has been called.
        new: one with the same parameters that has not been called.
        is_right: whether a module, which it may change, gives the right output.
        earlier: the calls by which the one has become other than the other.
    """
    try:
        with torch.no_grad():
            found = _Kept(used, new, is_right).least()
            lines = _lines(new, earlier, found) if found and earlier is not None else {}
    except (Exception, SystemExit):  # it cannot be copied: others tell
        return ""
    if not 0 < len(found) <= _NAMED:
        return ""
    made: dict[str, list[str]] = {}
    for name in map(_in_words, found):
        made.setdefault(lines.get(name, ""), []).append(name)
    parts = [" and ".join(names) + (f" ({line})" if line else "") for line, names in made.items()]
    return (
        f"\n  {KEPT} {' and in '.join(parts)}: with what a new module has "
        "there, the output is right"
    )


def explained(
    violation: InvariantViolation,
    modules: Callable[[], tuple[nn.Module, nn.Module]],
    is_right: Callable[[nn.Module], bool],
    earlier: Callable[[nn.Module], object] | None = None,
) -> InvariantViolation:
    """A violation that says what is kept once it is read, for which the modules are made then."""

    def told() -> str:
        with torch.random.fork_rng(devices=[]):
            return kept_values(*modules(), is_right, earlier)

    return violation.explained(told)


def unsaved(loaded: nn.Module, own: nn.Module, is_right: Callable[[nn.Module], bool]) -> str:
    """A sentence that names what a module needs of another beside its state; may be empty."""
    found = _Kept(loaded, own, is_right).least(deep=False)
    parts = [f"{_in_words(place)} ({_kind(own, place)})" for place in found[: _NAMED + 1]]
    if not 0 < len(parts) <= _NAMED:
        return ""
    return (
        f"\n  the state_dict does not hold {' and '.join(parts)}: with what the module itself "
        "has there, the output is right"
    )


def _kind(own: nn.Module, place: _Place) -> str:
    if place[-1][1] in _get(own, place[:-1])._buffers:
        return "a buffer with persistent=False"
    held = _get(own, place)
    if isinstance(held, Tensor):
        return "a plain tensor, no parameter or buffer"
    inside = {type(one) for one in tree_leaves(held) if isinstance(one, Tensor | nn.Module)}
    return f"a {type(held).__name__}{', whose contents are no part of the module' * bool(inside)}"


class _Missing:
    """Stands for what is not there, as a class, of which a copy is the same."""


class _Lines(OperationMode):
    """Notes the line that computes what lies in each memory, which is held."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.lines: dict[int, str] = {}
        self._held: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, line = func(*args, **(kwargs or {})), line_of(func)
        for one in tree_leaves(result) if line and not getattr(func, "is_view", False) else ():
            if isinstance(one, Tensor):
                self.lines[memory_of(one)] = line
                self._held.append(one)
        return result


class _Kept:
    """Copies of a used module, with what a new one has in some of its attributes."""

    def __init__(
        self, used: nn.Module, new: nn.Module, is_right: Callable[[nn.Module], bool]
    ) -> None:
        self.used, self.new, self._is_right = used, new, is_right

    def least(self, *, deep: bool = True) -> list[_Place]:
        """The fewest attributes with which the output is right, or parts of them."""
        places = [*_attributes(self.used, self.new)]
        if len(places) > _MOST or not self.is_right(places) or self.is_right([]):
            return []
        while True:
            places = self._needed(places)
            if not deep:
                return places
            finer = [part for place in places for part in self._parts(place) or [place]]
            if finer == places or len(finer) > _MOST or not self.is_right(finer):
                return places
            places = finer

    def is_right(self, places: list[_Place]) -> bool:
        """Whether the output is right with what a new module has at some places."""
        module = _copy(self.used)
        held = [_get(self.new, place) for place in places]
        try:
            for place, value in zip(places, _copy(held), strict=True):
                _put(module, place, value)
            return self._is_right(module)
        except Exception:  # one part needs another
            return False

    def _needed(self, places: list[_Place]) -> list[_Place]:
        for place in list(places):
            fewer = [other for other in places if other != place]
            if fewer and self.is_right(fewer):
                places = fewer
        return places

    def _parts(self, place: _Place) -> list[_Place]:
        one, two = (_get(module, place) for module in (self.used, self.new))
        steps = {**_steps(one), **_steps(two)}
        parts = [(*place, step) for step in steps]
        return [part for part in parts if unlike(_get(self.used, part), _get(self.new, part))]


def _attributes(used: nn.Module, new: nn.Module) -> Iterator[_Place]:
    """Yield the attributes of a module and its parts that are unlike, parameters left out."""
    named = dict(new.named_modules())
    for name, part in used.named_modules():
        if name not in named:
            continue
        owner: _Place = tuple(("part", each) for each in name.split(".") if name)
        for key in dict.fromkeys([*_own(part), *_own(named[name])]):
            place = (*owner, ("attribute", key))
            if unlike(_get(used, place), _get(new, place)):
                yield place


def _own(part: nn.Module) -> dict[str, Any]:
    held = {k: v for k, v in vars(part).items() if k not in _OF_TORCH}
    return {**held, **part._buffers}


def unlike(one: Any, two: Any, depth: int = 0) -> bool:
    """Whether two values differ; what is neither a tensor, plain nor made of such is alike."""
    if one is two or depth > _DEEPEST:
        return False
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.shape != two.shape or one.dtype != two.dtype or not torch.equal(one, two)
    if type(one) is not type(two):
        return True
    if isinstance(one, _PLAIN):
        return bool(one != two)
    mine, others = _steps(one), _steps(two)
    return mine.keys() != others.keys() or any(
        unlike(mine[step], others[step], depth + 1) for step in mine
    )


def _steps(held: Any) -> dict[tuple[str, Any], Any]:
    """What an object is made of, by the steps that lead there."""
    if isinstance(held, Mapping):
        return {("key", key): value for key, value in held.items()}
    if isinstance(held, list | tuple):
        return {("number", number): value for number, value in enumerate(held)}
    if isinstance(held, Tensor | type):
        return {}
    if isinstance(held, nn.Module):  # in a list: the parts of a module are looked at apart
        own = {**_own(held), **held._parameters, **held._modules}
        return {("attribute", key): value for key, value in own.items()}
    return {("attribute", key): value for key, value in getattr(held, "__dict__", {}).items()}


def _get(held: Any, place: _Place) -> Any:
    for kind, key in place:
        if kind in ("part", "attribute"):
            held = getattr(held, key, _Missing)
        else:
            has = key in held if isinstance(held, Mapping) else key < len(held)
            held = held[key] if has else _Missing
        if held is _Missing:
            break
    return held


def _put(module: nn.Module, place: _Place, value: Any) -> None:
    *owner, (kind, key) = place
    held = _get(module, tuple(owner))
    if kind == "attribute" and isinstance(held, nn.Module) and key in held._buffers:
        held._buffers[key] = None if value is _Missing else value
    elif kind == "attribute":
        delattr(held, key) if value is _Missing else setattr(held, key, value)
    elif value is _Missing:
        del held[key]
    else:
        held[key] = value


def _copy(held: Any) -> Any:
    """A copy of a module or a list, in which what is kept has no graph."""
    memo: dict[int, Any] = {}
    parts = map(vars, held.modules()) if isinstance(held, nn.Module) else [dict(enumerate(held))]
    for value in itertools.chain.from_iterable(part.values() for part in parts):
        _detached(value, memo)
    return copy.deepcopy(held, memo)


def _detached(held: Any, memo: dict[int, Any], depth: int = 0) -> None:
    if isinstance(held, Tensor):
        if not held.is_leaf:
            memo[id(held)] = held.detach().clone()
    elif depth <= _DEEPEST:
        for part in _steps(held).values():
            _detached(part, memo, depth + 1)


def _lines(
    new: nn.Module, earlier: Callable[[nn.Module], object], places: list[_Place]
) -> dict[str, str]:
    """The lines in which the earlier calls compute what they leave, by what it is."""
    module = _copy(new)
    with _Lines() as noted:
        earlier(module)
    found = {}
    for place in places:
        held = _get(module, place)
        if isinstance(held, Tensor) and memory_of(held) in noted.lines:
            found[_in_words(place)] = noted.lines[memory_of(held)].partition(" at ")[2]
    return found


def _in_words(place: _Place) -> str:
    text = ""
    for kind, key in place:
        text += f".{key}" if kind in ("part", "attribute") else f"[{key!r}]"
    return text.removeprefix(".").removeprefix("module.")
