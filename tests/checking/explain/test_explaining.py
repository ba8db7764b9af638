"""An explainer of a plugin adds clues, and is cut off or noted where it raises or hangs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.explain import explaining
from attnbench.checking.explain.explaining import clues_of, explained
from attnbench.checking.explain.explanations import Explanations
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.checking.work import Work
from attnbench.processes.pool import Event, Task
from attnbench.registry.address import parse_address
from attnbench.registry.discovery import call_hooks, explainer_of
from attnbench.subject.lookup import resolve

FOUND = Failure(invariant="weights_sum_to_one", case=Case().id)
FAILED = Outcome("scaled_dot", "weights_sum_to_one", "failed", "off", failure=FOUND)
LAST = Outcome("scaled_dot", "layouts_agree", "passed", "1 drawn", 1)
TARGET = parse_address("scaled_dot")
CLUE = attnbench.Clue(text="the last key is lost", file="mine.py", line=3)


def explains(*clues: Any) -> Any:
    hook = attnbench.hookimpl(lambda subject, failures: clues)
    hook.__name__ = "attnbench_explain"
    return SimpleNamespace(attnbench_explain=hook)


def raising(subject: Any, failures: Any) -> Any:
    raise ValueError("no idea\nat all")


def test_a_plugin_may_explain_only_and_is_called_with_the_failures() -> None:
    namespace = explains(CLUE)
    assert call_hooks(namespace) == ()
    explain = explainer_of(namespace)
    assert explain is not None
    assert explain(None, [FOUND]) == [(CLUE,)]


@pytest.mark.parametrize(
    ("explain", "told"),
    [
        (lambda subject, failures: [[CLUE]], [CLUE]),
        (raising, "the explainer of plugin mine raised ValueError: no idea"),
        (lambda subject, failures: [["no"]], "the explainer of plugin mine raised PluginError"),
    ],
)
def test_what_an_explainer_gives_or_raises(
    explain: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(plugins=[SimpleNamespace(name="mine", explain=explain)])
    monkeypatch.setattr(explaining, "registry", lambda: found)
    clues = clues_of(TARGET, [FAILED], "mine")
    assert clues == told if isinstance(told, list) else str(clues).startswith(told)


def awaited() -> tuple[Explanations, list[Task]]:
    tasks: list[Task] = []
    work = Work(TARGET, (FAILED.invariant, LAST.invariant), "scaled_dot")
    explanations = Explanations([work], (), tasks.append, 1.0)
    assert list(explanations.passed_on(FAILED)) == [FAILED]
    assert list(explanations.passed_on(LAST)) == []
    return explanations, tasks


def test_the_last_outcome_waits_for_the_clues_of_all() -> None:
    explanations, tasks = awaited()
    (core,) = tasks
    assert list(explanations.answered(Event(core, "value", [FAILED]))) == []
    assert list(explanations.answered(Event(core, "value", ["mine"]))) == []
    assert list(explanations.answered(Event(core, "done"))) == []
    _, plugin = tasks
    assert list(explanations.answered(Event(plugin, "value", [CLUE]))) == []
    lead, last = explanations.answered(Event(plugin, "done"))
    assert last == LAST
    assert lead.failure is not None
    assert lead.failure.clues == (CLUE,)
    assert lead.status == "failed"


def test_one_that_hangs_becomes_a_note_and_changes_nothing_else() -> None:
    explanations, tasks = awaited()
    list(explanations.answered(Event(tasks[0], "value", ["mine"])))
    list(explanations.answered(Event(tasks[0], "done")))
    lead, last = explanations.answered(Event(tasks[1], "timeout", reason="no answer in 10 s"))
    assert (lead.status, last) == ("failed", LAST)
    assert lead.note == "the explainer of plugin mine was cut off: no answer in 10 s"


def test_nothing_calls_a_subject_whose_device_is_lost() -> None:
    lost = Outcome("mine", "copies_agree", "failed", failure=Failure(case="no", device_lost=True))
    (subject,) = resolve("scaled_dot")
    assert explained(subject, [lost, FAILED]) == [lost, FAILED]
