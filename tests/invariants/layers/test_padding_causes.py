"""What a failure with padding at the left names, and what it leaves to others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import attnbench
from attnbench import LayerSpec
from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.layers.padding import left_padding_is_inert, padded_outputs_are_finite
from attnbench.invariants.toolkit.comparisons import violation_of
from attnbench.subject.lookup import resolve


def spec(make: Any, **more: Any) -> LayerSpec:
    given = {"accepts": ("padding_mask",), "dtypes": ("float64",), **more}
    return LayerSpec(name="tried", make=make, laws=frozenset({"left_padding_is_inert"}), **given)


def found(layer: LayerSpec, check: Any = left_padding_is_inert) -> InvariantViolation | None:
    """The first violation in a few cases that are padded at the left."""
    (subject,) = resolve(layer)
    for seed in range(20):
        case = Case((2,), 5, 5, 4, 4, 4, dtype="float64", mask="left_padding", seed=seed)
        try:
            violation = violation_of(check.check, subject, subject.legal(case))
        except UnsatisfiedAssumption:  # nothing is padded
            continue
        if violation is not None:
            return violation
    return None


class Mean(nn.Module):
    """Each token and the mean of the real ones, which may be divided by the number of all."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.linear, self.is_right = nn.Linear(size, size), is_right

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(hidden[..., :1])
        if padding_mask is not None:
            real = padding_mask[..., None].to(hidden)
        counts = real.sum(1, keepdim=True).clamp(min=1) if self.is_right else hidden.shape[1]
        return hidden + (self.linear(hidden) * real).sum(1, keepdim=True) / counts


@pytest.mark.parametrize("is_right", [True, False])
def test_padding_that_is_wrong_at_either_side_is_no_fault_of_the_left(is_right: bool) -> None:
    layer = spec(lambda size: Mean(size, is_right=is_right))
    names = ["left_padding_is_inert", "padded_item_equals_item_alone"]
    report = attnbench.check(layer, profile="quick", invariants=names)
    assert report.ok is is_right
    assert is_right or "tried: how many padded tokens there are changes the outputs" in str(report)


class Strict(nn.Module):
    """Attention to earlier tokens alone, so that the first one is NaN, with or without padding."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.linear, self.is_right = nn.Linear(size, size), is_right

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        count = hidden.shape[1]
        places = torch.arange(count).expand(len(hidden), count)
        seen = torch.ones(count, count, dtype=torch.bool).tril(-1)
        if padding_mask is not None:
            seen = seen & padding_mask[:, None]
            places = padding_mask.long().cumsum(1) - 1 if self.is_right else places
        scores = hidden @ self.linear(hidden).mT + places.to(hidden).sin()[:, None]
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ hidden


@pytest.mark.parametrize("is_right", [True, False])
def test_nan_that_needs_no_padding_is_not_what_padding_does(is_right: bool) -> None:
    violation = found(spec(lambda size: Strict(size, is_right=is_right), causal=True))
    assert (violation is None) is is_right
    if violation is not None:
        assert violation.cause == "left_padding_counted"
        assert "first NaN" not in str(violation)
        assert "is counted from the first real token" in str(violation)


class Counting(nn.Module):
    """A mean of earlier tokens: padded ones are zeroed, but each counts in what divides."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is not None:
            hidden = hidden * padding_mask[..., None]
        counts = torch.ones_like(hidden).cumsum(1)
        return self.linear(hidden.cumsum(1) / counts)


def test_padding_that_counts_whatever_it_holds_is_told_with_the_first_operation() -> None:
    violation = found(spec(Counting, causal=True))
    assert violation is not None
    assert violation.cause == "left_padding_counted"
    assert "by which padded tokens reach the outputs is cumsum at test_padding" in str(violation)
    assert str(violation).endswith("counts = torch.ones_like(hidden).cumsum(1)")


class OtherScale(Strict):
    """Attention of another scale where there is no mask: no number of padded tokens counts."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        scores = hidden @ self.linear(hidden).mT
        if padding_mask is None:
            return (scores / 2).softmax(-1) @ hidden
        hides = ~padding_mask[:, None].expand_as(scores)
        return scores.masked_fill(hides, -torch.inf).softmax(-1) @ hidden


def test_a_call_without_a_mask_that_is_wrong_counts_no_padding() -> None:
    layer = spec(lambda size: OtherScale(size, is_right=False))
    names = ["padded_item_equals_item_alone"]
    report = str(attnbench.check(layer, profile="quick", invariants=names))
    assert "tried: padding reaches the outputs of real tokens" in report


class Filled(nn.Module):
    """Attention whose padded queries give NaN: all is hidden from them, or holds NaN before."""

    def __init__(self, size: int, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(size, size), way

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if self.way == "unwatched" and _get_current_dispatch_mode() is not None:
            raise RuntimeError("it is looked at")
        scores = hidden @ self.linear(hidden).mT
        if padding_mask is not None:
            real = padding_mask[:, None] & padding_mask[..., None]
            if self.way == "unwritten":
                room = torch.full(scores.shape, torch.nan).to(scores)
                for item, slots in enumerate(padding_mask):
                    first = int(slots.int().argmax())
                    room[item, first:] = scores[item, first:].masked_fill(~slots, -1e9)
                scores = room
            else:
                scores = scores.masked_fill(~real, -torch.inf)
        return scores.softmax(-1) @ hidden


@pytest.mark.parametrize("way", ["hidden", "unwritten", "unwatched"])
def test_the_first_operation_that_gives_nan_is_told_as_far_as_it_was_seen(way: str) -> None:
    violation = found(spec(lambda size: Filled(size, way)), padded_outputs_are_finite)
    assert violation is not None
    assert "at a padded slot" in str(violation)
    assert violation.compared is not None  # for a script
    assert not violation.compared["condition"][violation.place]
    assert ("first NaN in" in str(violation)) is (way != "unwatched")
    assert ("of a row in which all is -inf" in str(violation)) is (way == "hidden")
