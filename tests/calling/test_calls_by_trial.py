"""What no name tells: which argument is which, in which order its output comes, what it views."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.calling.adaptation import spec_of

FEW = ["keeps_the_contract", "leading_sizes_fold", "keys_permute_freely"]


class Projected(nn.Module):
    """One state over values and their projected keys, none of which has a usual name."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.score = nn.Linear(10, 6), nn.Linear(6, 1)

    def forward(self, h: Tensor, feats: Tensor, p_feats: Tensor) -> Tensor:
        scores = self.score((p_feats + self.state(h)[:, None]).tanh()).squeeze(-1)
        return (scores.softmax(-1)[:, None] @ feats).squeeze(1)


class Flattened(nn.Module):
    """One state over a memory, beside whose items and slots in one axis it gets a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.score = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(
        self, s_hat: Tensor, memory: Tensor, rows: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        items, slots, width = memory.shape
        own = self.state(s_hat)[:, None].expand(items, slots, width).reshape(-1, width)
        scores = self.score((rows + own).tanh()).view(items, slots)
        weights = scores.softmax(-1) * padding_mask
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights[:, None] @ memory).squeeze(1), weights


class Viewing(nn.Module):
    """Dot products of sequences of which items are the second axis, by views."""

    def forward(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        length, items, width = query.shape
        rows = query.view(-1, width).reshape(length, items, width).transpose(0, 1)
        memory = context.view(-1, width).reshape(-1, items, width).transpose(0, 1)
        weights = (rows @ memory.mT).softmax(-1)
        return (weights @ memory).transpose(0, 1), weights


class Turned(nn.Module):
    """Items come first in its arguments, and second in its output."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ((query @ key.mT).softmax(-1) @ value).transpose(0, 1)


class OneKnown(nn.Module):
    """Only the query has a usual name."""

    def forward(self, tops: Tensor, query: Tensor, bottoms: Tensor) -> Tensor:
        return (query @ bottoms.mT).softmax(-1) @ tops


def test_keys_that_an_example_gives_beside_the_values_are_theirs() -> None:
    example = (torch.randn(6, 10), torch.randn(6, 7, 12), torch.randn(6, 7, 6))
    found = attnbench.check(Projected(), example=example, profile="quick", invariants=FEW)
    assert "called with h (B, E), feats (B, S, E), p_feats (B, S, E)" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


def test_items_and_slots_in_one_axis_of_an_example_are_cut_apart() -> None:
    example = (torch.randn(3, 8), torch.randn(3, 9, 8), torch.randn(27, 8), torch.ones(3, 9))
    found = attnbench.check(Flattened(), example=example, profile="quick", invariants=FEW[:2])
    assert "padding_mask (B, S), True may attend" in found.about[0]
    assert "more than 9 queries or keys" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


def test_what_views_its_tensors_gets_contiguous_ones_and_that_is_said() -> None:
    found = attnbench.check(spec_of(Viewing), profile="quick", invariants=FEW)
    assert "made contiguous, without which it raises: query, context" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


@pytest.mark.parametrize("target", [Turned, OneKnown])
def test_which_axis_and_which_argument_is_which_is_told_by_sizes(target: type[nn.Module]) -> None:
    found = attnbench.check(spec_of(target), profile="quick", invariants=FEW)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)
