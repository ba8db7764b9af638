"""The laws that mechanisms bring: each catches what breaks it, and passes what does not.

A broken mechanism is the right one with one edit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_plugins.mechanisms.forced_forward import ForcedForwardAttention
from attnbench_plugins.mechanisms.hard import HardAttention
from attnbench_plugins.mechanisms.key_value import KeyValueAttention
from attnbench_plugins.mechanisms.local_monotonic import LocalMonotonicAttention
from attnbench_plugins.mechanisms.local_predictive import LocalPredictiveAttention
from attnbench_plugins.mechanisms.static import StaticAttention
from attnbench_plugins.mechanisms.structured_self import StructuredSelfAttention

import attnbench
from attnbench.attention import masks, softmax
from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import Profile
from attnbench.checking.runner import run_invariant, seeded
from attnbench.subject.lookup import resolve


class RowsTooLarge(LocalPredictiveAttention):
    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, 3 * weights) if return_weights else output


class WindowOffByOne(LocalMonotonicAttention):
    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1  # the edges that the law asks for are those before and after the call
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


class WindowSharesOut(LocalMonotonicAttention):
    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, weights / 2) if return_weights else output


class LooksTooFarBack(KeyValueAttention):
    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


class PaddingLeaks(KeyValueAttention):
    def forward(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
    ) -> Any:
        options.pop("valid_lens", None)
        return super().forward(query, key, value, **options)


class RowsDiffer(StaticAttention):
    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = torch.cat([weights[..., :-1, :], weights[..., -1:, :].flip(-1)], -2)
        return (output, weights) if return_weights else output


class PicksTwo(HardAttention):
    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *,
        return_weights: Any = False,
        **options: Any,
    ) -> Any:
        output, weights = attnbench.attend(
            self.scoring, query, key, value, attn_mask=attn_mask, return_weights=True, **options
        )
        return (output, weights) if return_weights else output


class SamplesEvenly(HardAttention):
    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        scoring = self.scoring
        self.scoring = Sharper(scoring)

    def forward(self, *args: Any, **options: Any) -> Any:
        self.scoring.factor = 2.0 if self.training else 1.0
        result = super().forward(*args, **options)
        self.scoring.factor = 1.0
        return result


class Sharper(torch.nn.Module):
    def __init__(self, scoring: Any) -> None:
        super().__init__()
        self.scoring, self.factor = scoring, 1.0

    def forward(self, query: Any, key: Any) -> Any:
        return self.factor * self.scoring(query, key)


class WrongLogProbability(HardAttention):
    def forward(self, *args: Any, **options: Any) -> Any:
        result = super().forward(*args, **options)
        if self.training:
            self.log_prob = self.log_prob / 2
        return result


class MovesBack(ForcedForwardAttention):
    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *,
        return_weights: Any = False,
        **options: Any,
    ) -> Any:
        scores = self.scoring(query, key)
        mask = masks.fold(
            attn_mask,
            options.get("valid_lens"),
            options.get("is_causal", False),
            lead=tuple(query.shape[:-2]),
            q_len=query.shape[-2],
            kv_len=key.shape[-2],
            device=query.device,
        )
        soft = softmax.softmax_weights(scores, mask)
        weights = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)
        output = (weights @ value.to(weights)).to(query)
        return (output, weights) if return_weights else output


class TrainsAnotherChance(ForcedForwardAttention):
    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = weights.square() if self.training else weights
        return (output, weights) if return_weights else output


class PenaltyWithoutIdentity(StructuredSelfAttention):
    @staticmethod
    def penalty(weights: Any) -> Any:
        return (weights @ weights.mT).square().sum((-2, -1))


BROKEN = [
    ("rows_sum_to_at_most_one", RowsTooLarge),
    ("only_window_has_weight", WindowOffByOne),
    ("window_sums_to_one", WindowSharesOut),
    ("looks_back_at_most_its_window", LooksTooFarBack),
    ("padding_is_inert", PaddingLeaks),
    ("trailing_padding_equals_deleting", PaddingLeaks),
    ("all_rows_are_equal", RowsDiffer),
    ("picks_one_key", PicksTwo),
    ("samples_follow_soft_weights", SamplesEvenly),
    ("score_function_gradient_is_exact", WrongLogProbability),
    ("position_never_moves_back", MovesBack),
    ("training_is_the_expectation", TrainsAnotherChance),
    ("penalty_is_zero_iff_orthonormal", PenaltyWithoutIdentity),
]


def status(target: str | attnbench.MechanismSpec, law: str) -> str:
    """What a law says after a few cases, without looking for the smallest counterexample."""
    (subject,), (invariant,) = resolve(target), select_invariants([law])
    with seeded():
        return run_invariant(subject, invariant, Profile("few", 10), shrink=False).status


def spec_of(broken: type) -> attnbench.MechanismSpec:
    """The spec of the mechanism that a broken one derives from."""
    name = broken.__mro__[1].__module__.rpartition(".")[2]
    spec = attnbench.get(name)
    assert isinstance(spec, attnbench.MechanismSpec)
    return spec


@pytest.mark.parametrize(("law", "broken"), BROKEN, ids=[law for law, _ in BROKEN])
def test_a_law_catches_what_breaks_it(law: Any, broken: Any) -> None:
    right = spec_of(broken)
    spec = replace(
        right, make=broken, reference=None, laws=(*{*right.laws, law},), exempt={}, variants=()
    )
    assert status(spec, law) == "failed"


@pytest.mark.parametrize("law", [law for law, _ in BROKEN])
def test_a_law_passes_a_right_mechanism_that_declares_it(law: Any) -> None:
    names = (subject for subject in attnbench.subjects() if "(" not in subject)
    declared = [name for name in names if law in getattr(attnbench.get(name), "laws", ())]
    assert declared
    assert status(declared[0], law) == "passed"


def test_the_expectation_is_compared_within_the_rounding_of_the_scores() -> None:
    case = "b1x2x1-L1-S1-Eq5-Ek5-Ev5-float32-cpu-boolean-offset-far-s2680"
    (subject,) = resolve("forced_forward")
    (invariant,) = select_invariants(["training_is_the_expectation"])
    invariant.check(subject, attnbench.Case.from_id(case))


def test_each_exemption_of_a_mechanism_names_a_known_invariant_and_gives_a_reason() -> None:
    known = {invariant.name for invariant in select_invariants(None)}
    for name in attnbench.subjects():
        spec = attnbench.get(name.partition("(")[0])
        for invariant, reason in spec.exempt.items():
            assert invariant in known
            assert len(reason.split()) > 4, (name, invariant)


class HasNoParts(torch.nn.Module):
    def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


@pytest.mark.parametrize(
    ("law", "part"),
    [
        ("picks_one_key", "scoring"),
        ("samples_follow_soft_weights", "scoring"),
        ("only_window_has_weight", "edges"),
        ("looks_back_at_most_its_window", "window"),
        ("penalty_is_zero_iff_orthonormal", "penalty"),
    ],
)
def test_a_law_says_what_it_reads_of_a_module_that_lacks_it(law: str, part: str) -> None:
    spec = attnbench.MechanismSpec(
        name="bare",
        make=lambda *sizes: HasNoParts(),
        equal_sizes=True,
        laws=("pools_values", law),
        dtypes=("float32", "float64"),
    )
    (outcome,) = attnbench.check(spec, profile="quick", invariants=[law]).outcomes
    assert outcome.status == "failed"
    assert f"has no attribute {part!r}" in outcome.reason
