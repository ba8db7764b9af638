"""What a check leaves behind in the process that it runs in, and on its device."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import adapters
from attnbench.checking import api, case_search
from attnbench.checking.api import outcomes_of
from attnbench.checking.outcomes import CANARY
from attnbench.checking.parametrization import Check, CheckFailedError
from attnbench.checking.plan import select_invariants
from attnbench.registry.address import parse_address
from attnbench.subject.lookup import resolve


def test_whoever_takes_outcomes_one_by_one_has_threads_and_generator_of_his_own_between() -> None:
    (subject,) = resolve("dot")
    invariants = select_invariants(["output_has_shape_and_dtype", "weights_sum_to_one"])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(7)
    expected = torch.get_rng_state()
    try:
        for outcome in outcomes_of(subject, invariants, profile="quick"):
            assert outcome.status == "passed"
            assert torch.get_num_threads() == 2
            assert torch.equal(torch.get_rng_state(), expected)
    finally:
        torch.set_num_threads(threads)


def in_float32_inside(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over the batch that raises in half types."""
    weights = (query @ key.mT + torch.zeros(1)).softmax(-3 % query.dim())
    return weights.to(torch.promote_types(value.dtype, torch.float32)) @ value


def test_what_raises_in_half_types_alone_is_checked_in_wider_ones() -> None:
    spec = adapters.sdpa(in_float32_inside, name="inside", accepts=frozenset())
    (subject,) = resolve(spec)
    invariants = select_invariants(["keeps_the_contract", "item_alone_equals_item_in_batch"])
    contract, other = outcomes_of(subject, invariants, profile="quick")
    assert contract.failure is not None
    assert contract.failure.raised
    assert "float16" in contract.counterexample
    assert other.failure is not None
    assert not other.failure.raised
    assert "float16" not in other.counterexample
    outcomes = [*outcomes_of(subject, invariants, profile="quick", dtypes=["bfloat16"])]
    assert [outcome.status for outcome in outcomes] == ["failed", "skipped"]
    found = []
    for invariant in invariants:
        with pytest.raises(CheckFailedError) as error:
            Check(invariant)(subject)
        found.append(error.value.outcome.failure)
    assert [bool(failure.raised) for failure in found] == [True, False]


class _Device:
    """A device that fails every call after the first of several queries and keys."""

    lost = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Tensor:
        self.lost = self.lost or query.shape[-2] * key.shape[-2] > 30
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    @property
    def spec(self) -> Any:
        accepts = frozenset[str]()
        return adapters.sdpa(self.attend, name="lost", accepts=accepts)


NAMES = ["output_lies_within_values", "output_is_linear_in_values", "masked_weights_are_zero"]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    found = _Device()
    monkeypatch.setattr(case_search, "is_lost", lambda name: found.lost)
    return found


def test_after_a_device_is_lost_nothing_is_looked_at_there(device: _Device) -> None:
    (subject,) = resolve(device.spec)
    first, *others = outcomes_of(subject, select_invariants(NAMES), profile="quick")
    assert first.status == "failed"
    assert "illegal memory access" in first.reason
    assert first.failure is not None
    assert first.failure.device_lost
    assert not first.failure.smallest  # a smaller case would fail as well, whatever it is
    assert first.failure.script is None
    assert {o.status for o in others} == {"skipped"}
    assert others[0].reason == f"not run: cpu cannot be used since {first.invariant} failed"


def test_the_process_of_a_check_ends_there_and_its_canary_is_heard(
    device: _Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = (resolve(device.spec), select_invariants(NAMES))
    monkeypatch.setattr(api, "planned", lambda *given, **options: chosen)
    options: dict[str, Any] = {"profile": "quick", "device": "cpu", "dtypes": None, "seed": None}
    found = list(
        api.outcomes(parse_address("dot"), invariants=NAMES, canary="finite_at_extremes", **options)
    )
    assert [(o.subject, o.status) for o in found] == [("lost", "failed"), (CANARY, "failed")]


def by_norm(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that is NaN for a key of zeros alone."""
    return (query @ (key / key.norm(dim=-1, keepdim=True)).mT).softmax(-1) @ value


def viewed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that raises on strided keys alone."""
    flat = key.view(-1, key.shape[-1]).view(key.shape)
    return (query @ flat.mT * key.shape[-1] ** -0.5).softmax(-1) @ value


def few_features(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that raises for more than 12 features."""
    if key.shape[-1] > 12:
        error = ValueError("at most 12 features")
        raise error from error
    return (query @ key.mT * key.shape[-1] ** -0.5).softmax(-1) @ value


def squeezed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that drops the axis of a single query."""
    return ((query @ key.mT * key.shape[-1] ** -0.5).softmax(-1) @ value).squeeze(-2)


def writing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that changes keys, if there are more than 6 of them."""
    weights = (query @ key.mT * key.shape[-1] ** -0.5).softmax(-1)
    if key.shape[-2] > 6 and key.is_contiguous():
        key += 1.0
    return weights @ value


PARTS = {
    "by_norm": (by_norm, "nan", "give NaN"),
    "viewed": (viewed, "raised", "raise RuntimeError at "),
    "few_features": (few_features, "raised", "raise ValueError at "),
    "squeezed": (squeezed, "form", "return something else than an output"),
    "writing": (writing, "changes", "change their input"),
}
HOLDING = ["masked_weights_are_zero", "layouts_agree", "keys_permute_freely", "weights_sum_to_one"]


@pytest.mark.parametrize("name", PARTS)
def test_where_the_contract_breaks_in_part_the_rest_is_checked_on_what_is_sound(name: str) -> None:
    function, kind, deed = PARTS[name]
    (subject,) = resolve(adapters.sdpa(function, accepts=frozenset(), dtypes=("float32",)))
    names = ["keeps_the_contract", *HOLDING]
    contract, *others = outcomes_of(subject, select_invariants(names), profile="quick")
    assert contract.failure is not None
    assert contract.failure.fault == kind
    assert contract.note.startswith(f"Not looked at, {name}: other properties in calls that {deed}")
    assert {other.status for other in others} <= {"passed", "skipped"}
    assert "passed" in {other.status for other in others}
    told = [other.reason for other in others if other.reason.startswith("not run: ")]
    assert all(f"calls {deed}" in text for text in told)
    for check in select_invariants(HOLDING):
        with contextlib.suppress(pytest.skip.Exception):
            Check(check)(subject)


def test_a_call_that_raises_is_told_once_whichever_property_finds_it() -> None:
    names = ["layouts_agree", "agrees_with_float64", "keys_permute_freely"]
    (subject,) = resolve(adapters.sdpa(viewed, accepts=frozenset(), dtypes=("float32",)))
    first, *others = outcomes_of(subject, select_invariants(names), profile="quick")
    assert first.failure is not None
    assert first.failure.raised == "RuntimeError"
    assert "other properties in calls that raise RuntimeError at" in first.note
    assert [other.status for other in others] == ["passed", "passed"]
    (alone,) = outcomes_of(subject, select_invariants(names[1:2]), profile="quick")
    assert alone.status == "failed"
