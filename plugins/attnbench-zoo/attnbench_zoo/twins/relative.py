"""Attention that turns queries and keys by their positions, so that only distances count."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnbench_zoo.base import Twin
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["ROTARY", "Rotary"]

_WHERE = "a key counts by its distance; the law leading_padding_equals_deleting takes its place"


class Rotary(Attention):
    """Scaled dot-product attention of turned queries and keys, the last ones at one position."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Scores of the turned ones."""
        q_len, kv_len = query.shape[-2], key.shape[-2]
        turned = self.turn_query(query, self.positions(q_len, kv_len - q_len))
        return super().scores(turned, self.turn(key, self.positions(kv_len, 0)), scale)

    def positions(self, length: int, shift: int) -> Tensor:
        """Of each slot; the first key has 0."""
        return torch.arange(length, dtype=torch.float64) + shift

    def turn_query(self, query: Tensor, positions: Tensor) -> Tensor:
        """Queries turned as keys are."""
        return self.turn(query, positions)

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """The first half of the features turned against the second; an odd last one is kept."""
        pairs = tensor.shape[-1] // 2
        first, second, rest = tensor.double().split([pairs, pairs, tensor.shape[-1] % 2], -1)
        angle = positions.unsqueeze(-1) * self.rates(pairs)
        cos, sin = angle.cos(), angle.sin()
        turned = (first * cos - second * sin, first * sin + second * cos, rest)
        return torch.cat(turned, -1).to(tensor.dtype)

    def rates(self, pairs: int) -> Tensor:
        """How far each pair is turned from one position to the next."""
        return 100.0 ** (-torch.arange(pairs, dtype=torch.float64) / max(pairs, 1))


ROTARY = Twin(
    "rotary",
    replace(
        ATTENTION.spec,
        name="rotary",
        make=Rotary,
        formula="softmax((R_i q)·(R_j k) / √E)",
        reference=None,
        laws=("pools_values", "leading_padding_equals_deleting"),
        exempt=dict.fromkeys(
            (
                "keys_permute_freely",
                "queries_permute_freely",
                "query_alone_equals_query_among_others",
                "masking_equals_deleting",
                "valid_lengths_count_the_keys",
            ),
            _WHERE,
        ),
    ),
)
