"""Calls behind padding that count it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.checking.check_report import CheckReport

BOTH = pytest.mark.parametrize(
    "invariant", ["padded_rows_decode_as_alone", "right_padding_is_inert"]
)


class Placed(nn.Module):
    """Causal attention with a place added to each token: of real ones, but perhaps not in steps."""

    def __init__(self, size: int, steps: str) -> None:
        super().__init__()
        self.places, self.steps = nn.Embedding(256, size), steps

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        past = 0 if cache is None else cache["key"].shape[1]
        total = past + hidden.shape[1]
        real = torch.ones(len(hidden), total, dtype=torch.bool)
        real = real if padding_mask is None else padding_mask
        places = (real.long().cumsum(1) - 1).clamp(min=0)[:, past:]
        if past and self.steps == "slots":
            places = torch.arange(past, total).expand(len(hidden), -1)
        query = hidden + self.places(places)
        key = query if cache is None else torch.cat([cache["key"], query], 1)
        if cache is not None:
            cache["key"] = key
        seen = torch.ones(len(query[0]), total, dtype=torch.bool).tril(past) & real[:, None]
        scores = query @ key.mT
        return scores.masked_fill(~seen, -1e9).softmax(-1) @ key


def new(module: nn.Module, rows: int) -> dict[str, Tensor]:
    weight: Any = module.places.weight
    return {"key": weight.new_zeros(rows, 0, weight.shape[1])}


def checked(steps: str, invariant: str) -> CheckReport:
    """What a check finds of a layer whose steps behind padding are of a kind."""
    layer = LayerSpec(
        name="placed",
        make=lambda size: Placed(size, steps),
        accepts=("padding_mask", "cache"),
        causal=True,
        dtypes=("float64", "float32"),
        laws=frozenset({"left_padding_is_inert", "right_padding_is_inert"}),
        cache=CacheSpec(new=new),
    )
    return attnbench.check(layer, profile="quick", invariants=[invariant])


@BOTH
@pytest.mark.parametrize("steps", ["slots", "right"])
def test_positions_of_steps_that_count_padding_are_found(steps: str, invariant: str) -> None:
    report = checked(steps, invariant)
    assert report.ok is (steps == "right"), str(report)
