"""What calls cost, estimated without a clock, and the cases that a profile leaves out for it."""

from __future__ import annotations

import dataclasses
import select
from typing import Any

from torch import Tensor, nn

from attnbench import Case
from attnbench.checking.call_cost import affordable, calls_at, drawn_limit
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant
from attnbench.subject.lookup import resolve
from tests.checking.asked_cases import FEW, invariant, run

CASE = Case((2,), 9, 9)


def waits(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **options: Any) -> Any:
    select.select([], [], [], 0)
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, **options)


def loops(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **options: Any) -> Any:
    for _ in range(query.shape[-2] * key.shape[-2]):
        abs(1)
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, **options)


def test_a_call_that_waits_for_another_process_costs_thousands_of_functions() -> None:
    (quick_one,), (slow_one,) = resolve("dot"), resolve(waits, "sdpa")
    assert calls_at(quick_one, CASE) < 1_000
    assert calls_at(slow_one, CASE) > 5_000


def test_a_profile_leaves_out_the_largest_cases_beyond_the_functions_that_it_allows() -> None:
    (subject,) = resolve(loops, "sdpa")
    cases = [Case((1,), length, length) for length in (40, 9, 20, 3)]
    smallest = {case for case in cases if case.q_len in (9, 3)}
    profile = dataclasses.replace(
        PROFILES["quick"], functions=int(1.5 * sum(calls_at(subject, case) for case in smallest))
    )
    assert affordable(subject, cases, PROFILES["default"], 1) == frozenset(cases)
    assert affordable(subject, cases, profile, 1) == smallest
    assert len(affordable(subject, cases, profile, 3)) == 3


def test_a_profile_draws_as_many_cases_as_it_has_time_for() -> None:
    (subject,) = resolve(loops, "sdpa")
    profile = dataclasses.replace(PROFILES["quick"], functions=int(2.5 * calls_at(subject, CASE)))
    assert drawn_limit(subject, 100, profile, 1) == 2
    assert drawn_limit(subject, 100, profile, 5) == 5
    assert drawn_limit(subject, 100, PROFILES["default"], 1) == 100


def test_what_is_left_out_is_told_with_what_a_call_costs() -> None:
    (subject,) = resolve(loops, "sdpa")
    one, asked = invariant(lambda case: False)
    outcome = run_invariant(subject, one, dataclasses.replace(FEW, functions=100_000))
    told = "largest, which would take too long: a call at L = S = 9 takes as long as about"
    assert told in outcome.reason
    assert max(case.q_len * case.kv_len for case in asked) < 20_000
    usual, asked = invariant(lambda case: False)
    assert "too long" not in run(usual, target="dot").reason
    assert max(case.q_len * case.kv_len for case in asked) > 60_000
