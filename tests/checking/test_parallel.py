"""In which order invariants run in child processes, and what is said when one ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.outcomes import (
    CANARY,
    COMPILING,
    FIRST,
    KEEPS_CONTRACT,
    Failure,
    Outcome,
)
from attnbench.checking.parallel import (
    Work,
    _Run,
    choose_canary,
    preload,
    run_checks,
    shared_out,
    works_of,
)
from attnbench.checking.plan import planned
from attnbench.errors import OptionError, UnknownNameError
from attnbench.processes.pool import Event, Task
from attnbench.registry.address import Address, parse_address

NAMES = (KEEPS_CONTRACT, "weights_sum_to_one", COMPILING)
OPTIONS: dict[str, Any] = {"profile": "quick", "device": "cpu", "dtypes": None, "seed": None}


def outcomes(*targets: str, jobs: int = 1) -> list[Outcome]:
    pairs = [(parse_address(target), planned(target)[0][0].name) for target in targets]
    works = shared_out(works_of(pairs, NAMES), jobs)
    return list(run_checks(works, OPTIONS, jobs=jobs, timeout_s=120.0, memory_gib=2.0))


@pytest.mark.slow
def test_what_compiles_runs_last_within_a_subject() -> None:
    order = [invariant.name for invariant in planned("dot")[1]]
    assert order[0] == KEEPS_CONTRACT
    early = [name in FIRST for name in order[1:]]
    assert any(early)
    assert early == sorted(early, reverse=True)
    assert order[-1] == COMPILING
    found = [(o.subject, o.invariant) for o in outcomes("dot", "scaled_dot")]
    assert [name for _, name in (found[2], found[5])] == [COMPILING] * 2
    assert len(found) == len(set(found)) == 6


def test_no_invariant_is_lost_when_one_subject_is_shared_out() -> None:
    for names in (NAMES, NAMES[:1], NAMES[2:], ("a", COMPILING), (KEEPS_CONTRACT, COMPILING)):
        for jobs in (1, 2, 3):
            works = shared_out(works_of([(Address("x"), "x")], names), jobs)
            run = [name for work in works for name in work.invariants]
            assert sorted(set(run)) == sorted(names)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("multi_head(scoring=additve)", UnknownNameError),
        ("multi_head(scoring=soft)", OptionError),
        ("encoder_attention(scoring=additve)", UnknownNameError),
    ],
)
def test_a_wrong_value_of_an_option_is_an_error_and_no_finding(
    address: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"\w+\(scoring=\w+\): "):
        attnbench.check(address, profile="quick", invariants=[KEEPS_CONTRACT])


def test_the_compiler_is_not_waited_for_where_few_subjects_are_named() -> None:
    compiler = {"torch._dynamo", "torch._inductor.compile_fx"}
    for few in (1, 2):
        assert not compiler & set(preload(few))
    for many in (3, None):
        assert compiler < set(preload(many))
        assert compiler < set(preload(many, ["weights_sum_to_one", COMPILING]))
        assert "torch._inductor.compile_fx" not in preload(many, ["weights_sum_to_one"])


class Queue:
    """Workers that start nothing."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def submit(self, task: Task, *, first: bool = False) -> None:
        self.tasks.insert(0 if first else len(self.tasks), task)


def begun(*names: str, explainers: tuple[str, ...] = ()) -> tuple[_Run, Queue, Task]:
    queue: Any = Queue()
    work = Work(parse_address("scaled_dot"), names, "scaled_dot")
    run = _Run(queue, [work], OPTIONS, {"timeout_s": 1.0, "memory_gib": 1.0}, explainers)
    run._start("0", work)
    return run, queue, queue.tasks.pop()


def test_what_a_lost_device_left_unchecked_runs_in_another_process_and_then_is_said() -> None:
    """A process whose device is unusable ends as if it were done."""
    left = ("weights_sum_to_one", "finite_at_extremes")
    run, queue, task = begun(*left)
    assert list(run._taken(Event(task, "done"))) == []
    (again,) = queue.tasks
    assert again.arguments["invariants"] == left
    (found,) = run._taken(Event(again, "done"))
    assert run.held["scaled_dot"].status == found.status == "crashed"
    assert found.reason == (
        "not run: 2 processes of the subject ended, the last after one that made its device "
        "unusable"
    )


FOUND = Failure(invariant="weights_sum_to_one", case=Case().id)
FAILED = Outcome("scaled_dot", "weights_sum_to_one", "failed", "off", failure=FOUND)
CLUE = attnbench.Clue(text="the last key is lost", file="mine.py", line=3)


def test_the_last_outcome_waits_for_the_clues_of_plugins() -> None:
    run, queue, task = begun(FAILED.invariant, explainers=("mine", "theirs"))
    assert list(run._taken(Event(task, "value", FAILED))) == []
    assert run._asks("scaled_dot")
    (task,) = queue.tasks
    explained = replace(FAILED, failure=replace(FOUND, clues=(CLUE,), script="assert False"))
    for said in ([FAILED], [explained]):  # of the core, and of the first plugin
        run._explain(Event(task, "value", said))
    run._explain(Event(task, "timeout", reason='no answer in 10 s\n  | File "pool.py", line 7'))
    (told,) = run.failures["scaled_dot"].values()
    assert told.failure == explained.failure
    assert told.note == "the explainer of plugin theirs was cut off: no answer in 10 s"
    assert (told.status, run._asks("scaled_dot")) == ("failed", False)


def test_what_is_told_of_an_outcome_again_changes_nothing() -> None:
    run, _, task = begun("copies_agree", FAILED.invariant)
    passed = Outcome("scaled_dot", "copies_agree", "passed")
    again = replace(FOUND, got=1.0, script="assert False", clues=(CLUE,))
    for outcome in (passed, FAILED, replace(FAILED, reason="other", failure=again)):
        list(run._taken(Event(task, "value", outcome)))
    wrong = replace(passed, status="failed", failure=replace(FOUND, invariant="copies_agree"))
    assert list(run._taken(Event(task, "value", wrong))) == []
    (told,) = run.failures["scaled_dot"].values()
    assert (told.invariant, told.reason, told.failure) == (FAILED.invariant, "off", FOUND)


def test_a_process_that_checks_nothing_that_a_canary_violates_has_none() -> None:
    assert choose_canary(["unit_variance"]) is None


@pytest.mark.parametrize(
    ("canary", "void"),
    [
        (Outcome(CANARY, KEEPS_CONTRACT, "failed"), False),
        (Outcome(CANARY, KEEPS_CONTRACT, "passed"), True),
        (Outcome(CANARY, "layouts_agree", "failed"), True),
        (None, True),
    ],
)
def test_outcomes_count_only_if_the_expected_invariant_failed_on_the_canary(
    canary: Outcome | None, void: bool
) -> None:
    run, _, task = begun(KEEPS_CONTRACT)
    list(run._taken(Event(task, "value", Outcome("scaled_dot", KEEPS_CONTRACT, "passed"))))
    if canary is not None:
        list(run._taken(Event(task, "value", canary)))
    list(run._taken(Event(task, "done")))
    assert (run.held["scaled_dot"].status == "crashed") == void
