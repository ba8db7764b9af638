"""Mistakes with relative positions."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.relative import ROTARY, Rotary

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_rotary = Group(ROTARY, MUTANTS)


@_rotary("own", killers=("leading_padding_equals_deleting",))
class QueryPairsAreNeighbours(Rotary):
    """The query turns neighbouring features against each other, the key its two halves."""

    def turn_query(self, query: Tensor, positions: Tensor) -> Tensor:
        pairs = query.shape[-1] // 2
        order = [
            *range(0, 2 * pairs, 2),
            *range(1, 2 * pairs, 2),
            *range(2 * pairs, query.shape[-1]),
        ]
        turned = self.turn(query[..., order], positions)
        return turned[..., torch.tensor(order).argsort()]


@_rotary("own", killers=("decode_equals_prefill", "leading_padding_equals_deleting"))
class QueriesCountFromZero(Rotary):
    """The first query has position 0 beside more keys too, as in a step of decoding."""

    def positions(self, length: int, shift: int) -> Tensor:
        return super().positions(length, 0)


@_rotary("own", killers=("leading_padding_equals_deleting",))
class PositionsEndWithTheTable(Rotary):
    """Positions beyond a table of 64 all take its last row."""

    def positions(self, length: int, shift: int) -> Tensor:
        return super().positions(length, shift).clamp_max(63.0)


@_rotary("own", killers=("leading_padding_equals_deleting",))
class QueryTurnsAtAnotherRate(Rotary):
    """The query's angles are of another base than the key's."""

    def turn_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return super().turn_query(query, positions * 0.5)


@_rotary("own", killers=("mask_forms_agree",))
class SlotsCountedLikeLengths(Rotary):
    """Slots are counted in the dtype of the lengths, of which int8 ends at 127."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        rows = valid_lens.shape[1] if valid_lens.dim() == 2 else 1
        lens = valid_lens.reshape(-1, *[1] * (query.dim() - 3), rows, 1)
        return torch.arange(kv_len).to(lens.dtype) < lens


@_rotary("own", killers=("calls_leave_no_trace",))
class ShiftKeptByTheLonger(Rotary):
    """Where the queries begin is kept by the larger of both lengths."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        lengths = query.shape[-2], key.shape[-2]
        self.shift = self.__dict__.setdefault("shifts", {}).setdefault(
            max(lengths), lengths[1] - lengths[0]
        )
        return super().scores(query, key, scale)

    def turn_query(self, query: Tensor, positions: Tensor) -> Tensor:
        return self.turn(query, self.positions(query.shape[-2], self.shift))


@_rotary("own", killers=("agrees_with_float64",))
class AnglesInTheQuerysDtype(Rotary):
    """Angles are computed in the query's dtype, as in many a model in bfloat16."""

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        pairs = tensor.shape[-1] // 2
        first, second, rest = tensor.double().split([pairs, pairs, tensor.shape[-1] % 2], -1)
        angle = positions.to(tensor.dtype).unsqueeze(-1) * self.rates(pairs).to(tensor.dtype)
        cos, sin = angle.cos().double(), angle.sin().double()
        turned = (first * cos - second * sin, first * sin + second * cos, rest)
        return torch.cat(turned, -1).to(tensor.dtype)
