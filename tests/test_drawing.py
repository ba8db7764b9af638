"""Drawn cases: each once, the simplest first, others by name and seed, as many as are asked for."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from attnbench.cases import Case
from attnbench.drawing import drawn_cases
from attnbench.resolving import resolve
from attnbench.strategies import cases


def drawn(name: str, seed: int | None, count: int = 25) -> list[Case]:
    (subject,) = resolve("additive")
    return list(itertools.islice(drawn_cases(cases(subject), name, seed, count), count))


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
    few = st.sampled_from([Case(seed=seed) for seed in range(3)])
    assert len(list(drawn_cases(few, "some", None, 25))) == 3


def test_drawing_from_a_strategy_that_rejects_all_ends() -> None:
    none = st.just(Case()).filter(lambda case: case.seed > 0)
    assert list(drawn_cases(none, "some", None, 25)) == []
