import itertools
import math
from typing import Any

import pytest
import torch

import attnbench
from attnbench.cases import case_strategies
from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.domain import Domain
from attnbench.cases.schedule import schedule, varied
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant
from attnbench.errors import UsageError
from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import make_inputs


def test_an_id_names_every_field_and_is_read_back() -> None:
    case = Case((2, 3), 4, 6, 8, 6, 5, "float16", "cuda:1", "causal_padding", "heads", "far", 77)
    assert Case.from_id(case.id) == case
    assert Case.from_id(Case(lead=()).id) == Case(lead=())


def test_the_schedule_meets_every_mask_layout_regime_and_dtype() -> None:
    cases = list(schedule(Domain()))
    assert {case.mask for case in cases} == set(MASKS)
    assert {case.layout for case in cases} == set(LAYOUTS)
    assert {case.regime for case in cases} == set(REGIMES)
    assert {case.dtype for case in cases} == {"float64", "float32", "bfloat16", "float16"}
    assert len(cases) == len(set(cases))


def test_the_schedule_meets_the_shapes_that_chance_does_not_find() -> None:
    cases = list(schedule(Domain()))
    assert any(case.lead[:1] == (case.q_len,) and case.q_len == case.kv_len for case in cases)
    assert any(case.query_size != case.key_size for case in cases)
    assert any(not case.lead for case in cases)
    for size in (16, 32, 64, 128, 256):
        lengths = {length for case in cases for length in (case.q_len, case.kv_len)}
        assert any(size - 2 < length < size for length in lengths)
        assert any(size < length < size + 2 for length in lengths)


def test_cases_beyond_a_domain_are_scheduled_as_they_are_and_let_no_others_in() -> None:
    longer = Case((1,), 3, 150, mask="padding")
    domain = Domain(max_len=17, beyond=(longer,))
    found = [case for case in schedule(domain) if max(case.q_len, case.kv_len) > 17]
    assert [case.replace(seed=0) for case in found] == [longer]
    assert found[0] in domain
    without = Domain(max_len=17, masks=("none",), beyond=(longer,))
    assert all(max(case.q_len, case.kv_len) <= 17 for case in schedule(without))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_every_query_has_a_key_left_but_for_the_empty_row(mask: Any, lead: Any) -> None:
    for seed in range(5):
        case = Case(lead, 4, 5, mask=mask, seed=seed).legal()
        rows = make_inputs(case).allowed.any(-1)
        assert bool(rows.all()) == (case.mask != "empty_row")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_the_strides_and_not_the_shape(layout: Any) -> None:
    case = Case((2, 3), 4, 5, 6, 6, 6, layout=layout)
    tensor = make_inputs(case).key
    assert tensor.shape == (2, 3, 5, 6)
    assert torch.isfinite(tensor).all()
    assert tensor.is_contiguous() == (layout == "contiguous")


def test_near_overflow_overflows_float16_before_scaling_and_not_after() -> None:
    inputs = make_inputs(Case((), 4, 4, 64, 64, 4, regime="near_overflow", dtype="float64"))
    products = inputs.query @ inputs.key.mT
    assert bool((products > 65504).any())
    assert bool((products / math.sqrt(64) < 65504).all())


def test_a_brief_schedule_meets_every_mask_layout_and_regime_and_most_leads_too() -> None:
    full, brief = list(schedule(Domain())), list(schedule(Domain(), brief=True))
    assert len(brief) < len(full)
    for field in ("mask", "layout", "regime", "dtype"):
        assert {getattr(c, field) for c in brief} == {getattr(c, field) for c in full}
    assert {c.lead for c in full} - {c.lead for c in brief} == {(600,)}


@pytest.mark.parametrize("regimes", [("normal", "equal_keys"), ("normal", "huge", "far", "tiny")])
def test_a_brief_schedule_meets_the_first_regime_in_every_dtype(regimes: tuple[str, ...]) -> None:
    cases = list(schedule(Domain(masks=("padding",), regimes=regimes), brief=True))
    found = {c.dtype for c in cases if c.regime == "normal" and min(c.q_len, c.kv_len) > 1}
    assert found == {"float64", "float32", "bfloat16", "float16"}


def test_a_case_and_what_is_tried_at_it_are_read_back_and_keep_their_fields() -> None:
    plain = Case((2,), 3, 4, seed=9)
    trial = plain.tried(side="left", times=3, flag=True)
    assert trial.id == plain.id + "+side=left+times=3+flag=True"
    assert Case.from_id(trial.id) == trial
    assert trial.replace(q_len=1).variant("times", 0) == 3
    assert plain.variant("times", 0) == 0
    assert trial.tried(times=1).variant("times", 0) == 1


def test_a_few_scheduled_cases_meet_most_pairs_of_variants() -> None:
    variants = {
        name: tuple(range(count)) for name, count in zip("abcde", (2, 6, 2, 2, 2), strict=True)
    }
    found = [varied(Case(), variants, number) for number in range(96)]
    assert len({case.id for case in found}) == 96
    pairs = {
        (one, other, case.variant(one, 0), case.variant(other, 0))
        for case in found[:15]
        for one, other in itertools.combinations(variants, 2)
    }
    assert len(pairs) >= 65  # of 72


@pytest.mark.parametrize("variants", [{"documents": ("equal", "one empty")}, {"a-b": (1, 2)}])
def test_a_variant_that_an_id_could_not_hold_is_refused(variants: Any) -> None:
    subject = resolve("scaled_dot")[0]
    with pytest.raises(UsageError, match="letters, digits and underscores"):
        case_strategies.cases(subject, variants=variants)
    with pytest.raises(UsageError, match="letters, digits and underscores"):
        case_strategies.listed(Case(), variants=variants)


def test_variants_may_mix_words_and_numbers() -> None:
    def check(subject: attnbench.Subject, case: Case) -> None:
        if case.variant("n", "") != "all":
            raise attnbench.InvariantViolation("no more than all")

    mixed = attnbench.Invariant(
        name="mixed",
        check=check,
        cases=lambda subject: case_strategies.cases(subject, variants={"n": ("all", 1)}),
    )
    (subject,) = resolve("dot")
    outcome = run_invariant(subject, mixed, PROFILES["quick"])
    assert outcome.status == "failed"
    assert str(outcome.counterexample).endswith("+n=1")
