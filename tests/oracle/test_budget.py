from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import ATTENTION
from torch import Tensor, nn

from attnbench import Case, ScoringSpec
from attnbench.oracle.budget import Oracle, expected
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

SMALL = Case((2,), 3, 5, 4, 4, 4)


def _subject(target: Any) -> Subject:
    (subject,) = resolve(target)
    return subject


def _oracle(target: Any, case: Case) -> tuple[Oracle, Tensor]:
    subject = _subject(target)
    module, inputs = subject.build(subject.legal(case))
    return Oracle(subject, module, inputs), subject.output(module, inputs).detach()


def test_nan_in_a_slot_hidden_from_all_reaches_no_reference() -> None:
    subject = _subject("scaled_dot")
    module, inputs = subject.build(SMALL.replace(mask="key_row"))
    hidden = ~inputs.allowed.any(-2).unsqueeze(-1)
    assert bool(hidden.any())
    poisoned = inputs.replace(
        key=inputs.key.masked_fill(hidden, math.nan),
        value=inputs.value.masked_fill(hidden, math.nan),
    )
    oracle = Oracle(subject, module, poisoned)
    assert bool(oracle.output.isfinite().all())
    assert bool(oracle.budget().isfinite().all())


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["additive", "scaled_dot", ATTENTION])
def test_a_right_output_takes_a_small_share_of_its_budget(target: Any, dtype: str) -> None:
    for seed in range(20):
        oracle, output = _oracle(target, SMALL.replace(dtype=dtype, seed=seed, mask="boolean"))
        error = (output.double() - oracle.output).abs()
        assert bool((error <= oracle.budget() / 2).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_budget_is_what_a_few_units_in_the_last_place_change(dtype: str) -> None:
    oracle, _ = _oracle("scaled_dot", Case((4,), 8, 8, 16, 16, 4, dtype))
    moved = torch.stack(
        [
            (oracle.subject.output(module, inputs) - oracle.output).abs()
            for module, inputs in oracle.moved(oracle.eps, 32)
        ]
    )
    largest = moved.amax(0).detach()
    assert bool((oracle.budget() > largest).all())
    # not so wide that an error of some ten times as much would pass
    assert float((oracle.budget() / largest).median()) < 30


def test_a_saturated_row_has_a_budget_only_where_another_key_is_near() -> None:
    subject = _subject("dot")
    module, inputs = subject.build(Case((), 2, 2, 1, 1, 1, "bfloat16"))
    query = torch.tensor([[64.0], [64.0]], dtype=torch.bfloat16)
    value = torch.tensor([[1.0], [-1.0]], dtype=torch.bfloat16)

    def budget(*keys: float) -> float:
        key = torch.tensor(keys, dtype=torch.bfloat16).unsqueeze(-1)
        given = inputs.replace(query=query, key=key, value=value)
        return float(Oracle(subject, module, given).budget().max())

    assert budget(64.0, -64.0) < 0.1  # no rounding brings a score of -4096 near one of 4096
    assert budget(64.0, 63.75) > 1.0  # a unit in the last place decides which key wins


class HidesItself(nn.Module):
    """A dot product that hides every other key itself."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores = query @ key.mT
        return scores.masked_fill(torch.arange(key.shape[-2]) % 2 == 1, -math.inf)


def test_keys_that_a_function_hides_leave_the_others_their_budget() -> None:
    spec = ScoringSpec(name="hides", make=lambda q, k: HidesItself(), equal_sizes=True)
    oracle, _ = _oracle(spec, SMALL)
    assert bool((oracle.budget() > oracle.floor()).all())


@pytest.mark.parametrize("mask", ["none", "floating"])
def test_a_mechanisms_budget_is_surer_with_its_own_steps_rounded(mask: str) -> None:
    oracle, output = _oracle(ATTENTION, SMALL.replace(mask=mask))
    assert bool((oracle.budget(sure=True) >= oracle.budget()).all())
    assert bool(((output.double() - oracle.output).abs() <= oracle.budget()).all())
    assert bool((oracle.budget() < 1e-4).all())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_one_query_over_many_keys_with_sharp_weights_is_within_the_budget(seed: Any) -> None:
    case = Case((4, 4), 1, 1024, 64, 64, 64, seed=seed)  # dot: the largest weight is near 1
    (subject,) = resolve("dot")
    module, inputs = subject.build(case)
    oracle = Oracle(subject, module, inputs)
    off = (subject.output(module, inputs).double() - oracle.output).abs()
    # the sure budget is nowhere narrower, and takes 32 times as long
    budgets = (oracle.budget(sure=sure) for sure in (False, True))
    assert any(bool((off <= budget).all()) for budget in budgets)
    assert bool((oracle.floor() < 1e-4).all())


def test_what_a_sum_in_order_loses_of_small_terms_is_allowed() -> None:
    query, key, value = (
        torch.ones(1, 1, 1, 3),
        torch.zeros(1, 1, 4120, 3),
        torch.ones(1, 1, 4120, 3),
    )
    key[..., 0, :] = 17.5 * 3**-0.5  # the weights of the others are below half a unit of its own
    inputs = Inputs(query, key, value)
    subject = _subject("scaled_dot")
    oracle = Oracle(subject, subject.build(SMALL)[0], inputs)
    weights = (query @ key.mT * 3**-0.5).softmax(-1)
    output = torch.zeros(3)
    for term in weights[0, 0, 0].unsqueeze(-1) * value[0, 0]:
        output = output + term
    error = (output.double() - oracle.output).abs()
    assert bool((error > oracle.budget()).any())
    assert bool((error <= oracle.budget(sure=True)).all())


def test_a_budget_that_acquits_early_leaves_gradients_on() -> None:
    oracle, _ = _oracle("hard", SMALL)
    first = next(oracle.sure_budgets())
    assert torch.is_grad_enabled()
    assert bool((first <= oracle.budget(sure=True)).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "found"),
    [  # what the search of thorough found: a sum over a few dozen keys is a random walk
        ("dot", "b4x4x2-L9-S24-Eq16-Ek16-Ev16-float32-cpu-none-contiguous-normal-s466"),
        # all keys are tied in saturated scores: more ties than the random directions try
        ("hard", "b4x3x2-L27-S12-Eq3-Ek8-Ev15-float32-cpu-none-contiguous-near_overflow-s364"),
    ],
)
def test_right_outputs_with_rare_errors_are_within_the_budget(target: str, found: str) -> None:
    oracle, output = _oracle(target, Case.from_id(found))
    error = (output.double() - oracle.output).abs()
    assert bool((error <= oracle.budget(sure=True)).all())


def test_the_expected_output_follows_scale_groups_and_causality() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 8) for heads in (4, 2, 2))
    options: dict[str, Any] = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    right = expected(Inputs(query, key, value, **options))
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    assert ((found - right.output).abs() <= right.budget()).all()
    assert ((found * 1.001 - right.output).abs() > right.budget()).any()
