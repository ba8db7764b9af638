"""What a softmax of a call is given: weights of another one, or what dropout gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import textbook
from attnbench.checking.cause.seen_softmax import seen_at, seen_mistakes
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve

CASE = "b1-L1-S2-Eq1-Ek1-Ev1-float32-cpu-padding-contiguous-normal-s0"


class Weighs(nn.Module):
    """Textbook attention, with a mistake of what its softmax is given."""

    kind = "right"

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        scores = queries @ keys.mT
        if self.kind == "dropped":
            scores = self.dropout(scores) * 2
        if valid_lens is not None:
            hidden = torch.arange(keys.shape[1]) >= valid_lens.reshape(len(keys), -1, 1)
            scores = scores.masked_fill(hidden, -1e6)
        weights = scores.softmax(-1)
        if self.kind == "by_hand":
            powers = (scores - scores.amax(-1, keepdim=True)).exp()
            weights = (powers / powers.sum(-1, keepdim=True)).softmax(-1)
        if self.kind in ("queries", "heads"):
            axis = {"queries": -2, "heads": 0}[self.kind]
            weights = scores.softmax(axis)
        if self.kind == "twice":
            weights = weights.softmax(-1)
        self.attention_weights = weights
        return (weights if self.kind == "dropped" else self.dropout(weights)) @ values


def spec(kind: str) -> attnbench.MechanismSpec:
    return textbook(type("Made", (Weighs,), {"kind": kind}))


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        ("right", None),
        ("twice", "softmax_twice"),
        ("by_hand", "softmax_twice"),
        ("queries", "softmax_over_the_queries"),
        ("heads", "softmax_over_dimension_0"),
        ("dropped", "dropout_before_softmax"),
    ],
)
def test_what_a_softmax_is_given_is_seen(kind: str, mistake: str | None) -> None:
    (subject,) = resolve(spec(kind))
    assert [*seen_mistakes(subject)] == ([mistake] if mistake else [])


@pytest.mark.parametrize(
    ("kind", "invariant", "explains"),
    [
        ("twice", "masked_weights_are_zero", True),
        ("twice", "weights_sum_to_one", True),
        ("heads", "masked_weights_are_zero", True),
        ("dropped", "dropout_keeps_the_mean", True),
        ("dropped", "masked_weights_are_zero", False),
        ("right", "masked_weights_are_zero", False),
    ],
)
def test_it_explains_what_is_right_without_it(kind: str, invariant: str, explains: bool) -> None:
    (subject,) = resolve(spec(kind))
    (one,) = select_invariants([invariant])
    assert bool(seen_at(subject, one, Failure(case=CASE))) is explains


def test_a_second_softmax_is_told_with_both_lines() -> None:
    names = ["masked_weights_are_zero", "masking_equals_deleting"]
    report = attnbench.check(spec("twice"), profile="quick", invariants=names)
    (told,) = [outcome for outcome in report.outcomes if outcome.diagnosis]
    assert told.diagnosis == "softmax is taken twice"
    assert "is taken of rows that are weights already, given by softmax at" in told.reason


def test_a_mask_that_changes_nothing_is_told_for_lengths_too() -> None:
    class Unmasked(nn.Module):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__()
            self.out = nn.Linear(num_hiddens, num_hiddens)

        def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any) -> Any:
            return self.out((queries @ keys.mT).softmax(-1) @ values)

    report = attnbench.check(
        textbook(Unmasked), profile="quick", invariants=["valid_lengths_count_the_keys"]
    )
    assert [outcome.diagnosis for outcome in report.outcomes] == ["valid lengths are not applied"]
