"""The tensors and numbers that a cache holds, and numbers that are wrong, as a count of tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_DEEPEST = 6
_Part = tuple[str, Any, Any, Any]
"""A tensor or a number: its place in words, what holds it, its name there, and itself."""


def tensors_of(cache: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a cache, with their places in it."""
    for place, _, _, value in _parts(("cache", None, None, cache), set(), 0):
        if isinstance(value, Tensor):
            yield place, value


def wrong_number(held: Any, one: Any, is_right: Callable[[Any], bool]) -> str:
    """The number of a cache with which alone, as another one has it, the next call is right."""
    others = {place: value for place, _, _, value in _numbers(one)}
    for number, (place, _, _, own) in enumerate(_numbers(held)):
        if others.get(place, own) == own:
            continue
        cache = copy.deepcopy(held)
        _, holder, name, _ = list(_numbers(cache))[number]
        holder[name] = others[place]
        if is_right(cache):
            should = f"should be {others[place]}: with that number in its place"
            return f"{place} is {own}, and {should} the next call is right"
    return ""


def _numbers(cache: Any) -> Iterator[_Part]:
    for part in _parts(("cache", None, None, cache), set(), 0):
        if type(part[-1]) in (int, float) and not isinstance(part[1], tuple | None):
            yield part


def _parts(part: _Part, seen: set[int], depth: int) -> Iterator[_Part]:
    path, _, _, held = part
    if isinstance(held, Tensor | int | float):
        yield part
    elif depth < _DEEPEST and id(held) not in seen and not isinstance(held, nn.Module | type | str):
        seen.add(id(held))
        is_open = isinstance(held, Mapping | list | tuple)
        holder = held if is_open else getattr(held, "__dict__", {})
        for name in list(holder) if isinstance(holder, Mapping) else range(len(holder)):
            place = f"{path}[{name!r}]" if is_open else f"{path}.{name}"
            yield from _parts((place, holder, name, holder[name]), seen, depth + 1)
