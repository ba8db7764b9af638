"""The first difference names the line that is wrong, or none."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attnbench_plugins.explaining import first_difference
from torch import Tensor, nn

import attnbench
from attnbench.checking.outcomes import Outcome
from attnbench.testing import replay, resolve


def over_items(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores - scores.mean(0, keepdim=True)  # the mistake
    return scores.softmax(-1) @ value


def lost_root(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT
    norm = (key * key).sum(-1).sqrt()
    scores = scores / norm.unsqueeze(-2)  # the mistake
    return scores.softmax(-1) @ value


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).softmax(-1) @ value


def square(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT
    if scores.shape[-1] == scores.shape[-2]:
        scores = scores.flip(-1)  # the mistake
    return scores.softmax(-1) @ value


def centred(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT
    if scores.shape[0] > 1:
        mean = scores.mean(0, keepdim=True)  # this may be the mistake,
        scores = scores - mean  # or this
    return scores.softmax(-1) @ value


def underflows(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = (query @ key.mT / query.shape[-1] ** 0.5 - 200.0).exp()  # the mistake
    return weights / weights.sum(-1, keepdim=True) @ value  # which gives NaN here


class Twice(nn.Module):
    """Two blocks that make the same mistake, in tables read from their ends."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
        self.table = nn.Parameter(torch.randn(64, size))

    def forward(self, hidden: Tensor) -> Tensor:
        for into in self.maps:
            places = torch.arange(hidden.shape[1]).flip(0)  # the mistake
            hidden = hidden + into(hidden + self.table[places])
        return hidden


class LongCausal(nn.Module):
    """In a call on several items, the mask is another."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        items, length = hidden.shape[:2]
        seen = torch.ones(length, length).tril(-(items > 1) + 1)  # the mistake
        scores = (query @ key.mT).masked_fill(seen == 0, -1e9)
        return scores.softmax(-1) @ value


def failure(spec: Any, invariant: str) -> Outcome:
    (outcome,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert outcome.status == "failed", outcome.reason
    return outcome


def line_of_mistake(code: Any) -> int:
    lines, first = inspect.getsourcelines(code)
    return first + next(i for i, line in enumerate(lines) if "# the mistake" in line)


@pytest.mark.parametrize(
    ("code", "invariant"),
    [
        (over_items, "item_alone_equals_item_in_batch"),
        (lost_root, "keeps_the_contract"),
        (square, "query_alone_equals_query_among_others"),
    ],
)
def test_the_line_by_which_calls_part_or_nan_arises_is_named(code: Any, invariant: str) -> None:
    found = failure(attnbench.adapters.sdpa(code), invariant).failure
    assert found is not None
    (clue,) = found.clues
    assert (clue.file, clue.line) == ("test_first_difference.py", line_of_mistake(code))


def test_a_mask_that_depends_on_the_number_of_items_is_named() -> None:
    spec = attnbench.LayerSpec(name="causal", make=LongCausal, causal=True)
    found = failure(spec, "items_are_independent").failure
    assert found is not None
    (clue,) = found.clues
    assert clue.line == line_of_mistake(LongCausal)
    assert "it goes wrong first in tril at" in clue.text


def test_a_line_that_runs_in_each_block_is_healed_in_all() -> None:
    spec = attnbench.LayerSpec(name="twice", make=Twice, causal=True)
    found = failure(spec, "later_tokens_are_invisible").failure
    assert found is not None
    (clue,) = found.clues
    assert clue.line == line_of_mistake(Twice)


@pytest.mark.parametrize(
    ("code", "invariant"),
    [
        (unscaled, "agrees_with_scalar_reference"),
        (centred, "item_alone_equals_item_in_batch"),
        (underflows, "agrees_with_scalar_reference"),
    ],
)
def test_nothing_is_named_where_the_formula_or_several_lines_may_be_wrong(
    code: Any, invariant: str
) -> None:
    found = failure(attnbench.adapters.sdpa(code), invariant).failure
    assert found is not None
    assert found.clues == ()


def test_failures_are_run_again_until_one_shows_the_first_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [SimpleNamespace(invariant=f"property_{number}") for number in range(5)]
    shown = [None, None, None, attnbench.Clue(text="the last key is lost")]
    monkeypatch.setattr(first_difference, "replay", lambda *_: None)
    monkeypatch.setattr(first_difference, "first_difference", lambda comparison: shown.pop(0))
    clue = next(first_difference.first_differences(resolve("scaled_dot")[0], failures))
    assert clue.text == "in property_3, the last key is lost"


def test_a_failure_is_replayed_with_its_calls_and_what_they_compare() -> None:
    spec = attnbench.adapters.sdpa(over_items)
    found = failure(spec, "item_alone_equals_item_in_batch").failure
    assert found is not None
    (subject,) = resolve(spec)
    comparison = replay(subject, found)
    assert len(comparison.calls) >= 2
    assert comparison.got is not None
    assert comparison.expected is not None
    assert comparison.got[comparison.at].item() == pytest.approx(found.got)
    assert comparison.allowed == found.allowed
