"""The invariants on padding, dependence and runs tell right layers from those with one mistake."""

from __future__ import annotations

import pytest
from attnbench_zoo.base import Twin
from attnbench_zoo.right.layers import ENCODING, RINGED
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.invariants.layers import (
    dependence,
    layer_gradients,
    layer_runs,
    module_state,
    padding,
)
from attnbench.subject.lookup import resolve
from tests.invariant_runs import by_name

INVARIANTS = by_name(padding, dependence, layer_gradients, layer_runs, module_state)


def outcome(
    spec: LayerSpec, invariant: str, seed: int | None = None, *, shrink: bool = True
) -> attnbench.Outcome:
    (subject,) = resolve(spec)
    with seeded():
        return run_invariant(
            subject,
            INVARIANTS[invariant],
            PROFILES["quick"],
            seed=seed,
            shrink=shrink,
        )


@pytest.mark.parametrize("invariant", INVARIANTS)
@pytest.mark.parametrize("twin", [ENCODING, RINGED], ids=lambda twin: twin.name)
def test_a_right_layer_is_not_accused(twin: Twin, invariant: str) -> None:
    found = outcome(twin.spec, invariant)
    assert found.status in ("passed", "skipped"), found.reason


class OfOneSize(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


def test_a_layer_of_one_large_size_has_cases() -> None:
    spec = LayerSpec(name="of_one_size", make=OfOneSize, sizes=lambda size: 40)
    names = ["copies_agree", "empty_calls_are_harmless", "items_are_independent"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [o.status for o in report.outcomes] == ["passed"] * 3, str(report)


class Normed(OfOneSize):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.RMSNorm(size)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(self.norm(hidden))


def test_an_epsilon_that_follows_the_dtype_is_not_accused() -> None:
    spec = LayerSpec(name="normed", make=Normed, sizes=lambda size: max(4, size // 4 * 4))
    report = attnbench.check(spec, profile="quick", invariants=["agrees_with_float64"])
    assert report.ok, str(report)


class NoNumber(nn.Module):
    """Gives NaN for two tokens or more."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * float("nan") if hidden.shape[1] > 1 else hidden


def test_nan_in_both_of_two_runs_is_no_difference_between_them() -> None:
    for dtypes in (("float32", "float64"), ("bfloat16",)):
        spec = LayerSpec(name="no_number", make=lambda size: NoNumber(), dtypes=dtypes)
        for invariant in ("layer_calls_leave_no_trace", "items_are_independent"):
            assert outcome(spec, invariant).status == "passed"
        report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
        assert [outcome.status for outcome in report.outcomes] == ["failed"]


class Reshaped(Normed):
    def forward(self, hidden: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        return super().forward(hidden).view(rows, length, 2, -1).flatten(2)


def test_a_layer_that_raises_on_no_tokens_refuses_them() -> None:
    spec = LayerSpec(name="reshaped", make=Reshaped, sizes=lambda size: max(4, size // 4 * 4))
    report = attnbench.check(spec, profile="quick", invariants=["empty_calls_are_harmless"])
    (outcome,) = report.outcomes
    assert outcome.status == "skipped"
    assert "it refuses a call on no tokens (RuntimeError)" in outcome.reason


class FunctionallyNormed(OfOneSize):
    def forward(self, hidden: Tensor) -> Tensor:
        hidden = nn.functional.layer_norm(hidden, hidden.shape[-1:])
        pairs = super().forward(hidden).unflatten(-1, (-1, 2))
        return nn.functional.rms_norm(pairs, (2,)).flatten(2)


def test_norms_of_two_features_are_not_accused() -> None:
    spec = LayerSpec(name="twos", make=FunctionallyNormed, sizes=lambda size: max(2, size // 2 * 2))
    names = ["agrees_with_float64", "half_types_agree"]
    report = attnbench.check(spec, invariants=names)
    assert [o.status for o in report.outcomes] == ["passed"] * 2, str(report)
