from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import Case, MechanismSpec
from attnbench.cases import MASKS
from attnbench.oracles import Oracle, allowed_and_bias, float64_output, scalar_output
from attnbench.resolving import resolve
from attnbench.subject import Subject
from tests.mutants.twins.attention import ATTENTION

SMALL = Case((2,), 3, 5, 4, 4, 4)


def _subject(target: Any) -> Subject:
    (subject,) = resolve(target)
    return subject


def _oracle(target: Any, case: Case) -> tuple[Oracle, Tensor]:
    subject = _subject(target)
    module, inputs = subject.build(subject.legal(case))
    return Oracle(subject, module, inputs), subject.output(module, inputs).detach()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["additive", "gaussian"])
def test_both_references_give_the_same_output_under_every_mask(name: str, mask: str) -> None:
    subject = _subject(name)
    module, inputs = subject.build(subject.legal(SMALL.replace(mask=mask)))
    scalar = scalar_output(subject, module, inputs)
    assert scalar is not None
    wide = float64_output(subject, module, inputs).flatten(0, -2)
    torch.testing.assert_close(scalar, wide, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mask", MASKS)
def test_what_is_allowed_by_definition_is_what_masks_fold_into(mask: str) -> None:
    _, inputs = _subject("dot").build(SMALL.replace(mask=mask).legal())
    assert torch.equal(allowed_and_bias(inputs)[0], inputs.allowed)


def test_the_float64_run_matches_a_softmax_written_by_hand() -> None:
    oracle, _ = _oracle("dot", SMALL)
    query, key, value = (getattr(oracle.inputs, n) for n in ("query", "key", "value"))
    expected = (query @ key.mT).softmax(-1) @ value
    torch.testing.assert_close(oracle.output, expected, atol=1e-12, rtol=0)


def test_a_row_without_keys_is_zeros() -> None:
    oracle, _ = _oracle("dot", SMALL.replace(mask="empty_row"))
    dead = ~oracle.allowed.any(-1)
    assert bool(dead.any())
    assert not oracle.output[dead].any()


def test_nan_in_a_slot_hidden_from_all_reaches_no_reference() -> None:
    subject = _subject("scaled_dot")
    module, inputs = subject.build(SMALL.replace(mask="key_row"))
    dead = ~inputs.allowed.any(-2).unsqueeze(-1)
    assert bool(dead.any())
    poisoned = inputs.replace(
        key=inputs.key.masked_fill(dead, math.nan), value=inputs.value.masked_fill(dead, math.nan)
    )
    oracle = Oracle(subject, module, poisoned)
    assert bool(oracle.output.isfinite().all())
    assert bool(oracle.budget().isfinite().all())


def test_rows_are_few_and_hold_the_first_and_the_last() -> None:
    oracle, _ = _oracle("dot", Case((3,), 40, 16, 4, 4, 4))
    rows = oracle.rows(64)
    assert len(rows) == 4
    assert (rows[0], rows[-1]) == ((0, 0), (2, 39))
    assert len(oracle.rows()) == 120


def test_rows_by_the_scalar_reference_take_the_place_of_those_in_float64() -> None:
    oracle, _ = _oracle("scaled_dot", Case((3,), 7, 5, 4, 4, 4))
    mixed = oracle.with_scalar([(0, 0), (1, 6), (2, 3)])
    torch.testing.assert_close(mixed, oracle.output, atol=1e-12, rtol=0)
    assert torch.equal(mixed[0, 1:], oracle.output[0, 1:])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["additive", "scaled_dot", ATTENTION.spec])
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


def test_a_finer_unit_makes_a_narrower_budget() -> None:
    oracle, _ = _oracle("additive", SMALL)
    narrow = oracle.budget(units=64.0, eps=torch.finfo(torch.float64).eps)
    assert float((narrow / oracle.budget()).max()) < 1e-6


@pytest.mark.parametrize("mask", ["none", "floating"])
def test_a_mechanisms_budget_is_surer_with_its_own_steps_rounded(mask: str) -> None:
    oracle, output = _oracle(ATTENTION.spec, SMALL.replace(mask=mask))
    assert bool((oracle.budget(sure=True) >= oracle.budget()).all())
    assert bool(((output.double() - oracle.output).abs() <= oracle.budget()).all())
    assert bool((oracle.budget() < 1e-4).all())


def test_the_floor_is_part_of_the_budget() -> None:
    for target in ("gaussian", ATTENTION.spec):
        oracle, _ = _oracle(target, SMALL)
        assert bool((oracle.floor() <= oracle.budget()).all())


def test_a_mechanism_without_a_reference_has_none_and_with_a_bias_neither() -> None:
    assert isinstance(ATTENTION.spec, MechanismSpec)
    assert not _oracle(ATTENTION.spec, SMALL.replace(mask="bias"))[0].has_scalar
    assert _oracle(ATTENTION.spec, SMALL.replace(mask="boolean"))[0].has_scalar


@pytest.mark.parametrize("seed", range(8))
def test_one_query_over_many_keys_with_sharp_weights_is_within_the_budget(seed):
    case = Case((4, 4), 1, 1024, 64, 64, 64, seed=seed)  # dot: the largest weight is near 1
    (subject,) = resolve("dot")
    module, inputs = subject.build(case)
    oracle = Oracle(subject, module, inputs)
    off = (subject.output(module, inputs).double() - oracle.output).abs()
    assert bool((off <= oracle.budget(sure=True)).all())
    assert bool((oracle.floor() < 1e-4).all())


def test_a_budget_that_acquits_early_leaves_gradients_on():
    oracle, _ = _oracle("hard", SMALL)
    first = next(oracle.sure_budgets())
    assert torch.is_grad_enabled()
    assert bool((first <= oracle.budget(sure=True)).all())
