"""The line in which NaN arises is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench import MechanismSpec, ScoringSpec, check
from attnbench.cases.case import Case
from attnbench.checking.cause.nan_origin import nan_origin
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve


class Hyperbolic(nn.Module):
    """Minus a distance, which is NaN where rounding takes a product of equal points below 1."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        one, other = ((1 + t.square().sum(-1, keepdim=True)).sqrt() for t in (query, key))
        product = one @ other.mT - query @ key.mT - 1e-3
        return -torch.acosh(product)


def test_the_line_in_which_nan_arises_is_told() -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: Hyperbolic(), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["one_tensor_equals_three_copies"])
    case = Case((2,), 5, 5, 4, 4, 4).id
    told = nan_origin(subject, invariant, Failure(case=case))
    assert told.startswith("NaN arises in acosh at test_nan_origin.py:")
    assert told.endswith("return -torch.acosh(product)")
    assert nan_origin(subject, invariant, Failure(case=case, raised="ValueError")) == ""
    (invariant,) = select_invariants(["bounded_by_one"])  # which looks at the scores alone
    tiny = Case((2,), 5, 5, 4, 4, 4, regime="tiny").id
    assert nan_origin(subject, invariant, Failure(case=tiny)) == told


class Once(nn.Module):
    """It gives NaN in the first of two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        self.calls += 1
        return query @ key.mT * (float("nan") if self.calls == 1 else 1.0)


def test_no_line_is_told_where_a_call_gives_nan_only_once() -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: Once(), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["weights_sum_to_one"])
    case = subject.legal(Case((2,), 5, 5, 4, 4, 4)).id
    assert nan_origin(subject, invariant, Failure(case=case)) == ""


class Powers(nn.Module):
    """The logarithm of a product of powers, which overflow."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        powers = (32 * query.square()).exp()
        return (powers @ key.square().mT).log()


class Shares(nn.Module):
    """Shares of powers: where one overflows, all are 0, and so is their sum."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        powers = (32 * query.square()).exp()
        shares = (powers / powers.amax(-1, keepdim=True)).nan_to_num(0.0)
        return (shares / shares.sum(-1, keepdim=True)) @ key.mT


@pytest.mark.parametrize("made", [Powers, Shares])
def test_the_line_in_which_infinity_arises_is_told(made: type[nn.Module]) -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: made(), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["one_tensor_equals_three_copies"])
    told = nan_origin(subject, invariant, Failure(case=Case((2,), 5, 5, 4, 4, 4).id))
    assert told.startswith("NaN follows from infinity in exp at test_nan_origin.py:")


class Ratios(nn.Module):
    """Shares of scores; the NaN of all lines but the last is never used."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = torch.full((*query.shape[:-1], key.shape[-2]), torch.nan)
        scores.copy_(query @ key.mT)
        hidden = torch.full_like(scores, -torch.inf)
        shares = (hidden - hidden.amax(-1, keepdim=True)).exp()
        shares = torch.where(hidden > 0, shares, 0.0)
        shares = hidden.softmax(-1).nan_to_num(0.0) + shares
        shares.div_(shares.sum(-1, keepdim=True))
        return scores * shares


def test_a_line_whose_nan_is_not_used_is_not_named() -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: Ratios(), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["one_tensor_equals_three_copies"])
    told = nan_origin(subject, invariant, Failure(case=Case((2,), 5, 5, 4, 4, 4).id))
    assert told.startswith("NaN arises in div at test_nan_origin.py:")


def test_a_law_on_scores_has_a_cause_in_its_own_words() -> None:
    failure = Failure(quantity="scores of 2 * key - 2 * key.roll(1, -2)", cause="scores_formula")
    told = Outcome("mine", "bilinear", "failed", failure=failure).diagnosis
    assert told == "scores are not linear in the key"


class OverItems(nn.Module):
    """Attention whose weights are shares among the items of a batch."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT
        if attn_mask is not None:
            bias = torch.where(attn_mask.bool(), 0.0, -torch.inf)
            scores = scores + (bias if attn_mask.dtype == torch.bool else attn_mask)
        return scores.softmax(0) @ value


def test_the_line_is_told_where_a_mask_holds_minus_infinity_and_the_contract_fails() -> None:
    spec = MechanismSpec(name="mine", make=lambda *sizes: OverItems(), equal_sizes=True)
    (found,) = check(spec, profile="quick", invariants=["keeps_the_contract"]).outcomes
    assert "NaN arises in softmax at test_nan_origin.py:" in found.reason


class LogOfPowers(nn.Module):
    """The logarithm of a product of powers, all of which vanish: all scores are minus infinity."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        powers = (-query.square() - 300).exp()
        return (powers @ key.square().mT).log()


def test_the_line_in_which_scores_of_minus_infinity_arise_is_told() -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: LogOfPowers(), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["constant_values_come_back"])
    told = nan_origin(subject, invariant, Failure(case=Case((2,), 5, 5, 4, 4, 4).id))
    assert told.startswith(
        "a score of minus infinity follows from infinity in log at test_nan_origin.py:"
    )
