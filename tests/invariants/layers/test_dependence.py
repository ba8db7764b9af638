"""Which tokens and items an output depends on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from attnbench.checking.check_report import CheckReport


class Linear(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


class CountsTheItems(Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden + torch.arange(len(hidden))[:, None, None])


class PooledByTheBatch(Linear):
    """The place whose tokens are largest on average is added to all, of each item its own."""

    def forward(self, hidden: Tensor) -> Tensor:
        place = int(hidden.sum(-1).mean(0).argmax()) if hidden.shape[1] else 0
        return super().forward(hidden) + hidden[:, place : place + 1]


def checked(make: Any, *names: str, **fields: Any) -> CheckReport:
    spec = LayerSpec(name="layer", make=make, **fields)
    return attnbench.check(spec, profile="quick", invariants=names)


def cause(report: CheckReport) -> str | None:
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    return outcome.failure.cause


def test_an_output_that_depends_on_the_place_of_its_item_is_told_so() -> None:
    assert cause(checked(CountsTheItems, "items_are_independent")) == "layer_item_place"


def test_an_output_that_depends_on_other_items_does_not_hang_on_its_place() -> None:
    assert cause(checked(PooledByTheBatch, "items_are_independent")) == "items_mixed"


class MovingMean(Linear):
    """The mean of the tokens so far, divided by as many as there are in all."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.cumsum(1) / max(1, hidden.shape[1]))


def test_an_output_of_a_causal_layer_does_not_hang_on_how_many_tokens_follow() -> None:
    report = checked(MovingMean, "later_tokens_are_invisible", causal=True)
    assert cause(report) == "layer_total_counts"
    assert "without the tokens from" in str(report)


class PostNorm(Linear):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + super().forward(hidden))


def test_a_norm_of_one_feature_leaves_nothing_to_depend_on() -> None:
    report = checked(PostNorm, "outputs_depend_on_their_token")
    assert report.ok, str(report)


class Fourier(Linear):
    """Mixes tokens and features in float32, whatever it is given."""

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = torch.fft.fft2(super().forward(hidden).float()).real if hidden.numel() else hidden
        return hidden + mixed.to(hidden.dtype)


def test_a_layer_that_computes_in_float32_inside_may_round_by_layout_in_float64() -> None:
    report = checked(Fourier, "layouts_agree")
    assert report.ok, str(report)


class RemembersACall(Linear):
    def forward(self, hidden: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006 -- the bug
        seen.append(super().forward(hidden).mean())
        return super().forward(hidden) + len(seen)


def test_what_is_kept_in_a_default_argument_is_not_taken_for_random_numbers() -> None:
    spec = LayerSpec(name="remembers_a_call", make=RemembersACall)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.cause == "kept_or_unwritten"
    assert "random numbers" not in str(report)
