"""Attention to what is near: a window, and a penalty for each step."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import MechanismSpec
from attnbench_zoo.base import Twin
from attnbench_zoo.twins.attention import Attention
from attnbench_zoo.twins.floats import attend_by_floats

__all__ = ["DISTANCE", "Distance"]


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


def _reference(
    _module: Distance,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    seen = [[may and i - s <= 3 for s, may in enumerate(row)] for i, row in enumerate(allowed)]
    return attend_by_floats(query, key, value, seen, lambda i, s: -0.5 * abs(i - s))


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
DISTANCE = Twin(
    "distance",
    MechanismSpec(
        name="distance",
        make=Distance,
        formula="softmax(q·k / √E − |i − s| / 2) over s ≥ i − 3",
        source="Press et al. 2021, arXiv:2108.12409",
        equal_sizes=True,
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("pools_values",),
        exempt=dict.fromkeys(_POSITIONAL, _POSITIONS),
    ),
)
