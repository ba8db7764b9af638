"""Tasks and events as plain data: only JSON crosses a network, never a pickle.

The values of a task are numbers, strings, lists and mappings, or attnbench's own dataclasses, which
are encoded as their name and fields.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any

from attnbench import errors
from attnbench.processes.pool import Event, Task

_CLASS = "attnbench class"


def plain_task(task: Task) -> dict[str, Any]:
    """Convert a task to plain data for JSON."""
    return {name: _plain(getattr(task, name)) for name in Task.__dataclass_fields__}


def task_of(data: dict[str, Any]) -> Task:
    """Convert the result of :func:`plain_task` back to a task."""
    return Task(**{name: _rebuilt(value) for name, value in data.items()})


def plain_event(event: Event) -> dict[str, Any]:
    """Convert an event to plain data for JSON, without its task; an error as class and message."""
    error = event.error
    return {
        "kind": event.kind,
        "value": _plain(event.value),
        "reason": event.reason,
        "error": None if error is None else [type(error).__name__, str(error)],
        "over_memory": event.over_memory,
    }


def event_of(task: Task, data: dict[str, Any]) -> Event:
    """Convert the result of :func:`plain_event` back to an event of a task."""
    error = data["error"]
    if error is not None:
        error = getattr(errors, error[0], errors.AttnbenchError)(error[1])
    value = _rebuilt(data["value"])
    return Event(task, data["kind"], value, data["reason"], error, data["over_memory"])


def events_of(task: Task, text: str) -> list[Event]:
    """Convert a JSON list of results of :func:`plain_event` back to the events of a task."""
    return [event_of(task, data) for data in json.loads(text)]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {_CLASS: f"{kind.__module__}:{kind.__qualname__}", "fields": fields}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "items"):
        return _plain(dict(value))
    raise TypeError(f"{value!r} is no plain data: a task takes and gives numbers, texts and lists")


def _rebuilt(value: Any) -> Any:
    if isinstance(value, list):
        return [_rebuilt(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _CLASS not in value:
        return {key: _rebuilt(item) for key, item in value.items()}
    module, _, name = value[_CLASS].partition(":")
    if module.partition(".")[0] != "attnbench":
        raise ValueError(f"{value[_CLASS]!r} is no class of attnbench")
    kind = getattr(importlib.import_module(module), name)
    fields = {key: _rebuilt(item) for key, item in value["fields"].items()}
    for field in dataclasses.fields(kind):  # JSON has only lists
        if str(field.type).startswith("tuple") and isinstance(fields[field.name], list):
            fields[field.name] = tuple(fields[field.name])
    return kind(**fields)
