"""Small tasks that one layer of attention can learn, each asking for another kind of lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SYMBOLS = 8
LENGTH = 8
_FAR = 2
"""The largest offset that a query of ``difference`` asks for."""


@dataclass(frozen=True)
class Drawn:
    """A batch of a task: symbols ``(batch, LENGTH)`` each.

    Args:
        query, key, value: what queries, keys and values show.
        wanted: the symbol to answer for each query.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    wanted: Tensor


def _symbols(batch: int, generator: torch.Generator) -> Tensor:
    return torch.randint(SYMBOLS, (batch, LENGTH), generator=generator)


def _orders(batch: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(batch, count, generator=generator).argsort(-1)


def _found(key: Tensor, query: Tensor) -> Tensor:
    """The places at which the query's symbols stand among keys that are all different."""
    return key.argsort(-1).gather(-1, query)


def _content(batch: int, generator: torch.Generator) -> Drawn:
    """The value at the key with the query's symbol."""
    key, query = (_orders(batch, LENGTH, generator) for _ in range(2))
    value = _symbols(batch, generator)
    return Drawn(query, key, value, value.gather(1, _found(key, query)))


def _position(batch: int, generator: torch.Generator) -> Drawn:
    """The value as far from the end as the query is from the start."""
    value = _symbols(batch, generator)
    return Drawn(value, value, value, value.flip(-1))


def _difference(batch: int, generator: torch.Generator) -> Drawn:
    """The value as many places away as the query's symbol says."""
    value, here = _symbols(batch, generator), torch.arange(LENGTH)
    offset = torch.randint(-_FAR, _FAR + 1, (batch, LENGTH), generator=generator)
    place = (here + offset).clamp(0, LENGTH - 1)
    return Drawn(place - here + _FAR, value, value, value.gather(1, place))


def _alignment(batch: int, generator: torch.Generator) -> Drawn:
    """The value at the key with the query's symbol in the query's half of the sequence."""
    half = LENGTH // 2
    key, query = (
        torch.stack([_orders(batch, half, generator) for _ in range(2)], 1) for _ in range(2)
    )
    value = _symbols(batch, generator)
    wanted = value.view(batch, 2, half).gather(-1, _found(key, query))
    return Drawn(query.flatten(1), key.flatten(1), value, wanted.flatten(1))


TASKS: Mapping[str, Callable[[int, torch.Generator], Drawn]] = {
    "content": _content,
    "position": _position,
    "difference": _difference,
    "alignment": _alignment,
}
"""By name, what draws a batch, ``draw(batch, generator)``."""
