"""The table ``[tool.attnbench]`` of ``pyproject.toml``: defaults of ``attnbench check``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError, nearest

_FILE = Path("pyproject.toml")
_TYPES: Mapping[str, tuple[type, str]] = {
    "array": (list, "a list of texts"),
    "object": (dict, "a table of texts"),
    "string": (str, "a text"),
}


def check_defaults() -> dict[str, Any]:
    """Defaults of the parameters of ``attnbench check`` from the current folder's file.

    Raises:
        UsageError: the file cannot be read, or a key is unknown or has a wrong value.
    """
    table = _table()
    schema = json.loads(
        resources.files("attnbench.cli").joinpath("configuration.schema.json").read_text("utf-8")
    )
    properties = schema["properties"]
    for key, value in table.items():
        if key not in properties:
            raise _error(f"has no key {key!r}. {nearest(key, properties)}")
        _check(key, value, properties[key])
    exempt = [f"{name}={reason}" for name, reason in table.get("exempt", {}).items()]
    names = {"invariants": "invariant"}
    defaults = {names.get(key, key): value for key, value in table.items()}
    return {**defaults, "exempt": exempt} if exempt else defaults


def _check(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    kind, expected = _TYPES[rule["type"]]
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, kind) or not all(isinstance(item, str) for item in items):
        raise _error(f"says {key} = {json.dumps(value, default=str)}, which should be {expected}.")
    if value not in rule.get("enum", (value,)):
        raise _error(f"says {key} = {value!r}. {nearest(str(value), rule['enum'])}")


def _table() -> Mapping[str, Any]:
    if not _FILE.is_file():
        return {}
    try:
        content = tomllib.loads(_FILE.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {_FILE}: {error}.") from None
    table = content.get("tool", {}).get("attnbench", {})
    if not isinstance(table, dict):
        raise UsageError(f"{_FILE}: tool.attnbench should be a table, [tool.attnbench].")
    return table


def _error(complaint: str) -> UsageError:
    return UsageError(f"{_FILE}: [tool.attnbench] {complaint}")
