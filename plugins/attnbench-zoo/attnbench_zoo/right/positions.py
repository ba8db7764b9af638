"""Right attention in which positions count: near keys only, and turned queries and keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnbench import MechanismSpec
from attnbench.testing import scaled_dot_rows
from attnbench_zoo.right.attention import ATTENTION, Attention


class Distance(Attention):
    """``Attention`` with a window, and a penalty of 0.5 for each step from query to key (ALiBi).

    Args:
        query_size, key_size, value_size: ignored but for their equality.
        before: how many keys before its own a query sees.
    """

    before = 3

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """The given mask and bias, with the window's and the penalty."""
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        distance = self.distance(query.shape[-2], key.shape[-2], query.device)
        return allowed & self.window(distance), bias + self.penalty(distance.to(bias.dtype))

    def distance(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """``(L, S)``: how many steps each key lies before each query."""
        queries = torch.arange(q_len, device=device).unsqueeze(-1)
        return queries - torch.arange(kv_len, device=device)

    def window(self, distance: Tensor) -> Tensor:
        """Which keys lie in the window."""
        return distance <= self.before

    def penalty(self, distance: Tensor) -> Tensor:
        """What is added to the scores: less, the further away."""
        return -0.5 * distance.abs()


def _near_reference(
    _module: Distance,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    rows = []
    for i, (q, row) in enumerate(zip(query, allowed, strict=True)):
        seen = [may and i - s <= 3 for s, may in enumerate(row)]
        # a further feature adds the penalty to the score; all are scaled for one more
        root, more = len(q) ** 0.5, (len(q) + 1) ** 0.5
        wider = [*(x * more / root for x in q), more]
        keys = [[*k, -0.5 * abs(i - s)] for s, k in enumerate(key)]
        rows += scaled_dot_rows(None, [wider], keys, value, [seen])
    return rows


_POSITIONS = "its scores and its window, which may be empty, depend on where query and key stand"
_POSITIONAL = (
    "decode_equals_prefill",
    "every_attendable_key_matters",
    "hidden_keys_stay_hidden_at_extreme_scores",
    "keys_permute_freely",
    "masking_equals_deleting",
    "output_lies_within_values",
    "queries_permute_freely",
    "query_alone_equals_query_among_others",
    "weights_sum_to_one",
)
DISTANCE = MechanismSpec(
    name="distance",
    make=Distance,
    formula="softmax(q·k / √E − |i − s| / 2) over s ≥ i − 3",
    source="Press et al. 2021, arXiv:2108.12409",
    equal_sizes=True,
    reference=_near_reference,
    accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
    laws=("pools_values",),
    exempt=dict.fromkeys(_POSITIONAL, _POSITIONS),
)


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


ROTARY = replace(
    ATTENTION,
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
)
