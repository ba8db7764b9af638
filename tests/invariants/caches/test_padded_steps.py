"""What is told of calls behind padding that count it."""

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
        if past and padding_mask is not None and self.steps == "scaled":
            scores = scores * 0.1
        if past and self.steps == "halved":
            scores = scores * 0.5
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
def test_positions_of_steps_that_count_padding_are_told(steps: str, invariant: str) -> None:
    report = checked(steps, invariant)
    assert report.ok is (steps == "right"), str(report)
    if not report.ok:
        assert "placed: in calls with a cache, positions count padded slots, and" in str(report)
        assert "how many padded slots there are counts, not what they hold" in str(report)
        assert "the next one is right if the result of arange at test_padded_steps" in str(report)


@BOTH
def test_what_is_wrong_whatever_padding_there_is_is_not_said_to_count_it(invariant: str) -> None:
    report = checked("scaled", invariant)
    assert not report.ok
    assert "how many padded slots" not in str(report)
    assert "padded rows decode differently than alone" in str(report)


def test_a_token_whose_scores_have_a_wrong_factor_is_not_said_to_see_others() -> None:
    told = str(checked("halved", "calls_may_be_cut_anywhere"))
    assert "token 3 depends on tokens 0 to 3; in one call it depends on token 3\n" in told
    assert "scores = scores * 0.5: it is 0.5 times that of one call\n" in told
    assert "sees other tokens" not in told
