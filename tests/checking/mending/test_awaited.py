"""The last outcome of a subject that fails waits for a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.cases.case import Case
from attnbench.checking.mending.awaited import AwaitedMends
from attnbench.checking.outcomes import COMPILING, Failure, Outcome
from attnbench.checking.work import Work
from attnbench.processes.pool import Event, Task
from attnbench.registry.address import parse_address

WORK = Work(parse_address("mine.py:f"), ("one", "two", "three"), "mine")
FAILED = Outcome("mine", "one", "failed", "it is wrong", failure=Failure(case=Case().id))
SECOND = Outcome("mine", "two", "failed", "it is wrong", failure=Failure(case=Case(seed=1).id))


def passed(invariant: str, subject: str = "mine") -> Outcome:
    return Outcome(subject, invariant, "passed")


def started(*outcomes: Outcome) -> tuple[AwaitedMends, list[Task], list[Outcome]]:
    tasks: list[Task] = []
    other = Work(parse_address("mine.py:g"), ("one",), "other")
    awaited = AwaitedMends([WORK, other], (), tasks.append, 2.0)
    return awaited, tasks, [one for outcome in outcomes for one in awaited.passed_on(outcome)]


def test_all_failures_are_searched_for_together_and_the_last_outcome_waits() -> None:
    awaited, (task,), shown = started(FAILED, passed("one", "other"), SECOND, passed("three"))
    assert shown == [FAILED, passed("one", "other"), SECOND]
    assert task.arguments["target"] == WORK.target
    failures: list[Any] = [("one", FAILED.counterexample), ("two", SECOND.counterexample)]
    assert task.arguments["failures"] == failures
    value, end = Event(task, "value", "a change"), Event(task, "done")
    assert awaited.is_answered_by(value)
    assert [*awaited.answered(value)] == []
    mended, last = awaited.answered(end)
    assert mended.failure is not None
    assert (mended.invariant, mended.failure.mends, last) == ("two", ("a change",), passed("three"))


@pytest.mark.parametrize("kind", ["done", "timeout", "crashed", "raised"])
def test_however_a_search_ends_the_last_outcome_comes(kind: Any) -> None:
    awaited, (task,), shown = started(passed("two"), passed("three"), FAILED)
    assert shown == [passed("two"), passed("three")]
    assert [*awaited.answered(Event(task, kind))] == [FAILED]


@pytest.mark.parametrize(
    "other",
    [
        Outcome("mine", COMPILING[0], "failed", failure=Failure(case=Case().id)),
        Outcome("mine", "two", "failed", failure=Failure()),
        Outcome("mine", "two", "failed", failure=Failure(case=Case(device="cuda").id)),
        Outcome("mine", "two", "crashed"),
        passed("two"),
    ],
)
def test_nothing_is_searched_for_where_a_failure_cannot_be_tried_again(other: Outcome) -> None:
    failures = () if other.ok else (FAILED,)
    outcomes = [*failures, other, passed("three")][-3:]
    _, tasks, shown = started(*([passed("one")] if other.ok else []), *outcomes)
    assert tasks == []
    assert len(shown) == 3


def test_an_outcome_that_was_withdrawn_meanwhile_does_not_come_back() -> None:
    awaited, (task,), _ = started(FAILED, passed("two"), passed("three"))
    for outcome in (FAILED, passed("three")):
        awaited.withdraw(replace(outcome, status="crashed", failure=None))
    assert [*awaited.answered(Event(task, "value", "a change"))] == []
    assert [*awaited.answered(Event(task, "done"))] == []


def test_calls_that_raise_in_half_types_alone_are_left_out_where_something_else_fails() -> None:
    raised = Failure(case=Case(dtype="float16").id, smallest=True, raised="RuntimeError")
    half = Outcome("mine", "two", "failed", "it raises", failure=raised)
    _, (task,), _ = started(FAILED, half, passed("three"))
    assert [name for name, _ in task.arguments["failures"]] == [FAILED.invariant]
    assert task.arguments["wide"]
    _, (task,), _ = started(passed("one"), half, passed("three"))
    assert not task.arguments["wide"]


@pytest.mark.parametrize(
    ("invariant", "failure", "is_beside"),
    [
        ("three", Failure(case=Case().id), False),
        ("three", Failure(case=Case(mask="causal").id, smallest=True), False),
        ("three", Failure(case=Case().id, program="append 1, append 1"), True),
        ("three", Failure(case=Case().id, quantity="gradient by query"), True),
        (
            "three",
            Failure(case=Case().id, quantity="gradient", named="parameter_without_effect"),
            False,
        ),
        ("three", Failure(case=Case().id, got=float("nan")), True),
        ("three", Failure(case=Case().id, named="nan_at_equal"), True),
        ("three", Failure(case=Case(dtype="float16").id, smallest=True), True),
        ("chunked_equals_recurrent", Failure(case=Case().id), True),
        ("window_leaves_the_keys_around", Failure(case=Case().id), True),
    ],
)
def test_what_shows_no_ordinary_call_to_be_wrong_is_named(
    invariant: str, failure: Failure, is_beside: bool
) -> None:
    work = Work(parse_address("mine.py:f"), (invariant,), "mine")
    tasks: list[Task] = []
    outcome = Outcome("mine", invariant, "failed", "it is wrong", failure=failure)
    assert not [*AwaitedMends([work], (), tasks.append, 2.0).passed_on(outcome)]
    assert tasks[0].arguments["beside"] == [invariant] * is_beside
