"""The options that callers use: windows in the calls in which they matter most."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash


def windowed(*, step: bool = True, beside: bool = True, tile: int = 1) -> Any:
    """A window that one query alone, or a causal call, lacks where asked, or begins by the tile."""

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
