"""The options that callers use: windows in the calls in which they matter most."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash


def windowed(*, step: bool = True, beside: bool = True, tile: int = 1, whole: int = 1) -> Any:
    """A window that one query alone, or a causal call, lacks where asked, or begins by the tile, or
    leaves all of a tile of keys that its first row sees whole.
    """

    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
        place = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        ahead = torch.arange(k.shape[1]) - place
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if window_size[0] >= 0 and (step or q.shape[1] > 1) and (beside or not causal):
            seen &= ahead >= -window_size[0]
        if tile > 1 and window_size[0] >= 0:  # what the tile's last row sees
            last = (place // tile * tile + tile - 1).clamp(max=k.shape[1] - 1)
            seen &= torch.arange(k.shape[1]) >= (last - window_size[0]) // tile * tile
        if whole > 1 and window_size[0] >= 0:
            first, keys = place // whole * whole, torch.arange(k.shape[1])
            seen |= (keys // whole * whole >= first - window_size[0]) & (keys < first)
        if window_size[1] >= 0:
            seen &= ahead <= window_size[1]
        if causal:
            seen &= ahead <= 0
        output = scaled_dot_product_attention(query, key, value, seen)
        return output.transpose(1, 2)

    return attend


@pytest.mark.parametrize(
    ("ways", "status"),
    [
        ({}, "passed"),
        ({"step": False}, "failed"),
        ({"beside": False}, "failed"),
        ({"tile": 16}, "failed"),
        ({"tile": 128}, "failed"),
        ({"whole": 16}, "failed"),
    ],
)
def test_a_window_holds_in_a_step_in_a_causal_call_and_in_the_last_tile(
    ways: Any, status: str
) -> None:
    report = attnbench.check(
        flash(windowed(**ways), name="windowed"),
        profile="quick",
        invariants=["window_leaves_the_keys_around"],
    )
    assert [outcome.status for outcome in report.outcomes] == [status]


@pytest.mark.parametrize("wrong", [False, True])
def test_slopes_are_those_of_each_head_of_a_group_in_a_step(wrong: bool) -> None:
    def sloped(
        q: Tensor, k: Tensor, v: Tensor, causal: bool = False, alibi_slopes: Tensor | None = None
    ) -> Tensor:
        heads, kv_heads = q.shape[2], k.shape[2]
        query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
        key, value = (t.repeat_interleave(heads // kv_heads, 1) for t in (key, value))
        far = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1] - torch.arange(k.shape[1])
        bias = torch.zeros(far.shape, dtype=q.dtype).masked_fill(causal & (far < 0), -torch.inf)
        if alibi_slopes is not None:
            slopes = alibi_slopes.to(q.dtype)
            if wrong and q.shape[1] == 1 and kv_heads < heads:
                slopes = slopes.view(-1, kv_heads).T.flatten()
            bias = bias - slopes[:, None, None] * far.abs()
        return scaled_dot_product_attention(query, key, value, bias).transpose(1, 2)

    report = attnbench.check(
        flash(sloped), profile="quick", invariants=["alibi_slopes_lower_scores_by_distance"]
    )
    assert report.ok is not wrong, str(report)
