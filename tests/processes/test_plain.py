"""Tasks and events as plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attnbench.checking.outcomes import Failure, Outcome
from attnbench.errors import UsageError
from attnbench.processes.plain import event_of, plain_event, plain_task, task_of
from attnbench.processes.pool import Event, Task

TASK = Task("x", "module:function", {"target": "additive", "names": ("a", "b")}, threads=2)


def over_the_wire(data: Any) -> Any:
    return json.loads(json.dumps(data))


def test_a_task_comes_back_from_json() -> None:
    back = task_of(over_the_wire(plain_task(TASK)))
    assert back.arguments == {"target": "additive", "names": ["a", "b"]}
    assert (back.name, back.function, back.threads) == ("x", "module:function", 2)


def test_an_outcome_comes_back_as_an_outcome() -> None:
    outcome = Outcome(
        "additive", "sums", "failed", "off", failure=Failure(place=(1, 2), mistakes=("a", "b"))
    )
    back = event_of(TASK, over_the_wire(plain_event(Event(TASK, "value", outcome))))
    assert back == Event(TASK, "value", outcome)


def test_an_error_of_ours_comes_back_with_its_class() -> None:
    event = Event(TASK, "raised", reason="no", error=UsageError("no"))
    back = event_of(TASK, over_the_wire(plain_event(event)))
    assert isinstance(back.error, UsageError)
    assert str(back.error) == "no"


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="is no plain data"):
        plain_event(Event(TASK, "value", object()))


def test_a_class_of_somebody_else_is_never_built() -> None:
    data = plain_event(Event(TASK, "value", None))
    data["value"] = {"attnbench class": "subprocess:Popen", "fields": {"args": "true"}}
    with pytest.raises(ValueError, match="is no class of attnbench"):
        event_of(TASK, data)
