"""The tensors and numbers that a cache holds, and numbers that are wrong, as a count of tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

_DEEPEST = 6

NUMBER = ": with that number in its place the next call is right"
"""What shows that a number is wrong."""


class _Part(NamedTuple):
    """A tensor or a number of a cache: its place in words, what holds it, and its name there."""

    place: str
    holder: Any
    name: Any
    value: Any


def tensors_of(cache: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a cache, with their places in it."""
    for part in _parts(_Part("cache", None, None, cache), set(), 0):
        if isinstance(part.value, Tensor):
            yield part.place, part.value


def wrong_number(held: Any, one: Any, is_right: Callable[[Any], bool]) -> str:
    """The number of a cache with which alone, as another one has it, the next call is right.

    Args:
        held, one: a cache that the next call is wrong with, and one that it is right with.
        is_right: whether the next call is right with a cache.
    """
    others = {part.place: part.value for part in _numbers(one)}
    for place, own in {part.place: part.value for part in _numbers(held)}.items():
        if place not in others or others[place] == own:
            continue
        cache = copy.deepcopy(held)
        (part,) = (part for part in _numbers(cache) if part.place == place)
        part.holder[part.name] = others[place]
        if is_right(cache):
            return f"{place} is {own}, and should be {others[place]}{NUMBER}"
    return ""


def _numbers(cache: Any) -> Iterator[_Part]:
    for part in _parts(_Part("cache", None, None, cache), set(), 0):
        if type(part.value) in (int, float) and not isinstance(part.holder, tuple | None):
            yield part


def _parts(part: _Part, seen: set[int], depth: int) -> Iterator[_Part]:
    held = part.value
    if isinstance(held, Tensor | int | float):
        yield part
        return
    if depth == _DEEPEST or id(held) in seen or isinstance(held, nn.Module | type | str):
        return
    seen.add(id(held))
    is_open = isinstance(held, Mapping | list | tuple)
    holder = held if is_open else getattr(held, "__dict__", {})
    for name in list(holder) if isinstance(holder, Mapping) else range(len(holder)):
        place = f"{part.place}[{name!r}]" if is_open else f"{part.place}.{name}"
        yield from _parts(_Part(place, holder, name, holder[name]), seen, depth + 1)
