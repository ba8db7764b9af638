"""An explainer of a plugin adds clues, and is cut off or noted where it raises or hangs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.explain import explaining
from attnbench.checking.explain.explaining import explained, explanations_of
from attnbench.checking.outcomes import Explanation, Failure, Outcome
from attnbench.registry.address import parse_address
from attnbench.registry.discovery import call_hooks, explainer_of
from attnbench.subject.lookup import resolve

FOUND = Failure(invariant="weights_sum_to_one", case=Case().id)
FAILED = Outcome("scaled_dot", "weights_sum_to_one", "failed", "off", failure=FOUND)
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
        (
            lambda subject, failures: [[CLUE]],
            [Explanation(FOUND.invariant, clues=(CLUE,), explainer="mine")],
        ),
        (raising, "the explainer of plugin mine raised ValueError: no idea"),
        (lambda subject, failures: [["no"]], "the explainer of plugin mine raised PluginError"),
    ],
)
def test_what_an_explainer_gives_or_raises(
    explain: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(plugins=[SimpleNamespace(name="mine", explain=explain)])
    monkeypatch.setattr(explaining, "registry", lambda: found)
    said = explanations_of(TARGET, [FAILED], "mine")
    assert said == told if isinstance(told, list) else str(said).startswith(told)


def test_a_failure_whose_script_cannot_be_written_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(*_: Any) -> None:
        raise RuntimeError("its make raises the second time")

    monkeypatch.setattr(explaining, "first_difference", lambda comparison: CLUE)
    monkeypatch.setattr(explaining, "replayed", lambda *_: SimpleNamespace())
    monkeypatch.setattr(explaining, "script_of", raising)
    (subject,) = resolve("scaled_dot")
    (told,) = explained(subject, [FAILED])
    assert told.failure is not None
    assert (told.failure.clues, told.failure.script) == ((CLUE,), None)


def test_failures_are_run_again_until_one_shows_the_first_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["first", *(f"further_{number}" for number in range(5))]
    failed = [
        replace(FAILED, invariant=name, failure=replace(FOUND, invariant=name)) for name in names
    ]
    shown = [None, None, None, None, CLUE]
    monkeypatch.setattr(explaining, "select_invariants", lambda names: [SimpleNamespace()])
    monkeypatch.setattr(explaining, "replayed", lambda *_: SimpleNamespace())
    monkeypatch.setattr(explaining, "first_difference", lambda comparison: shown.pop(0))
    monkeypatch.setattr(explaining, "script_of", lambda *_: None)
    (subject,) = resolve("scaled_dot")
    told = [o.failure.clues for o in explained(subject, failed) if o.failure is not None]
    assert [len(clues) for clues in told] == [1, 0, 0, 0, 0, 0]
    assert "(as further_3 shows)" in told[0][0].text


def test_nothing_calls_a_subject_whose_device_is_lost() -> None:
    lost = Outcome("mine", "copies_agree", "failed", failure=Failure(case="no", device_lost=True))
    (subject,) = resolve("scaled_dot")
    assert explained(subject, [lost, FAILED]) == [lost, FAILED]
