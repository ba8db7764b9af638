"""Cases that an invariant draws by strategies of its own, and of which dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from attnbench import Case, Invariant, Subject
from attnbench.invariants.toolkit.comparisons import reject
from attnbench.strategies import cases, listed
from tests.checking.asked_cases import found, invariant, run


def test_variants_are_drawn_and_shrink_by_themselves() -> None:
    sides = {"side": ("left", "right"), "times": (1, 2, 3)}
    one, asked = invariant(
        lambda case: case.variant("times", 1) == 3,
        lambda subject: cases(subject, variants=sides),
    )
    case = found(run(one))
    assert case.variant("side", "") == "left"
    assert (case.seed, case.variant("times", 0)) == (0, 3)
    assert case.id.endswith("-s0+side=left+times=3")
    holds, asked = invariant(lambda case: False, lambda subject: cases(subject, variants=sides))
    run(holds)
    chosen = {(case.variant("side", ""), case.variant("times", 0)) for case in asked}
    assert len(chosen) == 6


def test_filtered_and_mapped_strategies_keep_schedule_quota_and_dtype() -> None:
    one, asked = invariant(
        lambda case: False,
        lambda subject: (
            cases(subject)
            .filter(lambda case: case.kv_len > 1)
            .map(lambda case: case.replace(layout="contiguous"))
        ),
    )
    outcome = run(one, dtypes=("float32",))
    assert "30 drawn" in outcome.reason
    assert not outcome.reason.startswith("0 scheduled")
    assert {case.dtype for case in asked} == {"float32"}
    assert {case.layout for case in asked} == {"contiguous"}
    assert all(case.kv_len > 1 for case in asked)
    few, _ = invariant(
        lambda case: False, lambda subject: cases(subject).filter(lambda case: case.kv_len == 257)
    )
    assert run(few).status == "inconclusive"


def test_an_inconclusive_outcome_tells_why_cases_were_rejected() -> None:
    def check(subject: Subject, case: Case) -> None:
        reject("the moon is new" if case.q_len > 1 else "the tide is out")

    one, _ = invariant(lambda case: False, cases)
    outcome = run(dataclasses.replace(one, check=check))
    assert outcome.status == "inconclusive"
    assert "scheduled ones rejected: the moon is new; the tide is out); at least" in outcome.reason


@pytest.mark.parametrize("joined", [lambda a, b: a | b, st.one_of])
def test_joined_strategies_keep_both_schedules(
    joined: Callable[..., st.SearchStrategy[Case]],
) -> None:
    one, asked = invariant(
        lambda case: False,
        lambda subject: joined(
            cases(subject, masks=("causal",)), cases(subject, masks=("padding",), leads=(1,))
        ),
    )
    outcome = run(one, dtypes=("float64",))
    alone, _ = invariant(lambda case: False, lambda subject: cases(subject, masks=("causal",)))
    scheduled = int(outcome.reason.split()[0])
    assert scheduled > int(run(alone, dtypes=("float64",)).reason.split()[0])
    assert {case.mask for case in asked} == {"causal", "padding"}
    assert {case.dtype for case in asked} == {"float64"}
    fails, _ = invariant(
        lambda case: case.mask == "padding",
        lambda subject: joined(
            cases(subject, masks=("causal",)), cases(subject, masks=("padding",))
        ),
    )
    assert found(run(fails)).mask == "padding"


def test_a_strategy_of_ones_own_looks_only_at_the_dtypes_asked_for() -> None:
    own = st.builds(Case, dtype=st.sampled_from(["float32", "float64"]), seed=st.integers(0, 999))
    one, asked = invariant(lambda case: False, lambda subject: own)
    assert run(one, dtypes=("float64",)).status == "passed"
    assert {case.dtype for case in asked} == {"float64"}
    outcome = run(one, dtypes=("float16",))
    assert (outcome.status, "leave none of its cases" in outcome.reason) == ("skipped", True)


def test_a_missing_reference_is_a_skip_for_a_strategy_of_ones_own() -> None:
    from attnbench.oracle.references import NoReferenceError

    def unjudged(subject: Subject, case: Case) -> None:
        raise NoReferenceError("nothing judges it")

    for strategy in (cases, lambda subject: st.builds(Case, seed=st.integers(0, 999))):
        outcome = run(Invariant(name="some_property", check=unjudged, cases=strategy))
        assert (outcome.status, outcome.reason) == ("skipped", "nothing judges it")


NEAREST = "not legal for dot; the nearest legal case is"


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (lambda s: st.just(Case(q_len=-3)), "q_len = -3, but must be at least 0"),
        (lambda s: st.just(Case(lead=(2, -1))), "lead = (2, -1), but must be at least 0"),
        (lambda s: st.just(Case(mask="causl")), "mask 'causl' is unknown. Did you mean 'causal'"),
        (lambda s: cases(s).map(lambda case: case.replace(layout="spiral")), "layout 'spiral'"),
        (lambda s: listed(Case(regime="mad")), "regime 'mad' is unknown"),
        (lambda s: st.builds(Case, query_size=st.just(3), key_size=st.just(4)), NEAREST),
        (lambda s: cases(s).map(lambda case: case.replace(query_size=3, key_size=4)), NEAREST),
        (lambda s: cases(s).map(lambda case: case.replace(lead=(), mask="padding")), NEAREST),
        (lambda s: listed(Case(query_size=3)), NEAREST),
        (lambda s: st.integers(), "must be attnbench.Case"),
        (lambda s: cases(s, regimes=("hug",)), "got the unknown name 'hug'. Did you mean 'huge'"),
        (lambda s: cases(s, regime=("huge",)), "cases() takes no 'regime'. Did you mean 'regimes'"),
    ],
)
def test_a_strategy_of_cases_that_no_subject_has_gets_a_clear_error(
    strategy: Callable[[Subject], st.SearchStrategy[Case]], told: str
) -> None:
    outcome = run(invariant(lambda case: True, strategy)[0], target="dot")
    assert outcome.status == "error"
    assert told in outcome.reason


def test_a_filter_that_leaves_nothing_is_named() -> None:
    one, _ = invariant(lambda case: True, lambda s: cases(s).filter(lambda case: False))
    outcome = run(one, target="dot")
    assert (outcome.status, "leave none of its cases" in outcome.reason) == ("skipped", True)
