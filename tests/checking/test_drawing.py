"""Drawn cases: each once, the simplest first, others by name and seed, as many as are asked for."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.cases.case import Case
from attnbench.checking.drawing import drawn_cases
from attnbench.strategies import Drawn, cases, changed, drawn_of
from attnbench.subject.lookup import resolve


def known(strategy: st.SearchStrategy[Case]) -> Drawn:
    found = drawn_of(strategy)
    assert found is not None
    return found


def drawn(name: str, seed: int | None, count: int = 25) -> list[Case]:
    (subject,) = resolve("additive")
    return list(itertools.islice(drawn_cases(known(cases(subject)), name, seed), count))


def test_as_many_cases_are_drawn_as_are_asked_for_and_each_once() -> None:
    found = drawn("some", None, 120)
    assert len(set(found)) == len(found) == 120


def test_the_same_name_and_seed_draw_the_same_cases_and_others_draw_others() -> None:
    assert drawn("some", None) == drawn("some", None)
    assert not set(drawn("some", None)[1:]) & set(drawn("other", None))
    assert not set(drawn("some", None)[1:]) & set(drawn("some", 0))


def test_the_simplest_case_comes_first_and_the_rest_are_spread() -> None:
    found = drawn("some", None)
    assert (found[0].lead, found[0].q_len, found[0].kv_len, found[0].seed) == ((), 1, 1, 0)
    assert len({case.mask for case in found}) > 6
    assert len({case.dtype for case in found}) == 4


def test_drawing_ends_where_a_strategy_has_no_more_cases() -> None:
    few = changed(cases(*resolve("additive")), lambda case: Case(seed=case.seed % 3))
    assert len(list(drawn_cases(known(few), "some", None))) == 3


def test_drawing_from_a_strategy_that_rejects_all_ends() -> None:
    none = cases(*resolve("additive"), min_q_len=5, max_len=4)
    assert list(drawn_cases(known(none), "some", None)) == []


def test_the_strategy_itself_draws_what_is_drawn_many_at_once() -> None:
    strategy = cases(*resolve("additive"), masks=("causal",))
    data = bytes(range(known(strategy).size))
    assert known(strategy).case_of(data) in known(strategy).domain

    seen = []

    @settings(max_examples=30, database=None)
    @given(strategy)
    def look(case: Case) -> None:
        assert case in known(strategy).domain
        seen.append(case)

    look()
    assert len(set(seen)) > 20


def test_a_change_is_made_to_what_is_drawn_also_for_other_dtypes() -> None:
    (subject,) = resolve("additive")
    strategy = changed(cases(subject), lambda case: case.replace(q_len=1))
    narrowed = replace(known(strategy), domain=replace(known(strategy).domain, dtypes=("float16",)))
    found = list(itertools.islice(drawn_cases(narrowed, "some", None), 20))
    assert {(case.q_len, case.dtype) for case in found} == {(1, "float16")}
