"""The names of version 0.1 for what a strategy draws do what they did."""

from __future__ import annotations

import random

from hypothesis.strategies import just

from attnbench import Case
from attnbench.strategies import Drawn, cases, changed, domain_of, drawn_of
from attnbench.subject.lookup import resolve


def known(masks: tuple[str, ...]) -> Drawn:
    (subject,) = resolve("scaled_dot")
    found = drawn_of(changed(cases(subject, masks=masks), lambda case: case.replace(regime="huge")))
    assert found is not None
    return found


def test_bytes_stand_for_legal_and_changed_cases() -> None:
    drawn, chance = known(("causal",)), random.Random(0)
    given = [chance.randbytes(drawn.size) for _ in range(20)]
    made = [drawn.case_of(data) for data in given]
    assert {(case.mask, case.regime) for case in made if case} == {("causal", "huge")}
    assert len({case.id for case in made if case}) > 15
    assert made == [drawn.case_of(data) for data in given]
    assert drawn.case_of(b"") is None


def test_changes_are_made_one_after_the_other_and_survive_the_strategy() -> None:
    drawn = known(("none",))
    more = Drawn(drawn.subject, drawn.domain, (*drawn.changes, lambda c: c.replace(seed=7)))
    again = drawn_of(more.strategy())
    assert again is not None
    assert domain_of(more.strategy()) == drawn.domain
    case = again.case_of(bytes(again.size))
    assert case is not None
    assert (case.mask, case.regime, case.seed) == ("none", "huge", 7)


def test_one_of_several_changes_is_picked_by_the_seed() -> None:
    (subject,) = resolve("scaled_dot")
    both = changed(
        cases(subject), lambda c: c.replace(regime="huge"), lambda c: c.replace(regime="tiny")
    )
    found = drawn_of(both)
    assert found is not None
    (change,) = found.changes
    start = Case((), 1, 1, 1, 1, 1)
    assert [change(start.replace(seed=seed)).regime for seed in (0, 1)] == ["huge", "tiny"]


def test_other_strategies_draw_nothing_known() -> None:
    assert drawn_of(just(Case((), 1, 1, 1, 1, 1))) is None
