"""The table ``[tool.attnbench]`` of ``pyproject.toml``: defaults of ``check``, and exemptions."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.checking.outcomes import Outcome
from attnbench.checking.parallel import Work
from attnbench.errors import UsageError, first_line, nearest
from attnbench.report.printing import write_file
from attnbench.specs.heirs import heir

KNOWN = "known failure"
"""How the reason of an exemption begins that :func:`update` writes, and may remove."""

_FILE = Path("pyproject.toml")
_HEAD = "[tool.attnbench.exempt]"
_EXEMPTION = re.compile(r"(?:(.*?): )??(\w+)\s*=\s*(.+)", re.DOTALL)
_REASON_WIDTH = 120
_KEYS = {"targets": list, "profile": str, "invariants": list, "exempt": dict}
"""The keys of the table, and what each holds texts in."""
_TYPES = {list: "a list of texts", dict: "a table of texts", str: "a text"}


def check_defaults() -> dict[str, Any]:
    """Defaults of the parameters of ``attnbench check`` from the current folder's file.

    Raises:
        UsageError: the file cannot be read, or a key is unknown or has a wrong value.
    """
    table = _table()
    for key, value in table.items():
        if key not in _KEYS:
            raise _error(f"has no key {key!r}. {nearest(key, _KEYS)}")
        items = value.values() if isinstance(value, dict) else value
        if type(value) is not _KEYS[key] or not all(isinstance(item, str) for item in items):
            text = json.dumps(value, default=str)
            raise _error(f"says {key} = {text}, which should be {_TYPES[_KEYS[key]]}.")
    exempt = [f"{name}={reason}" for name, reason in table.get("exempt", {}).items()]
    names = {"invariants": "invariant"}
    defaults = {names.get(key, key): value for key, value in table.items()}
    return {**defaults, "exempt": exempt} if exempt else defaults


def _table() -> Mapping[str, Any]:
    if not _FILE.is_file():
        return {}
    try:
        content = tomllib.loads(_FILE.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {_FILE}: {error}.") from None
    table = content.get("tool", {}).get("attnbench", {})
    if not isinstance(table, dict):
        raise _error("should be a table.")
    return table


def _error(complaint: str) -> UsageError:
    return UsageError(f"{_FILE}: [tool.attnbench] {complaint}")


def exempted(
    exemptions: Sequence[str], works: Sequence[Work], invariants: Collection[str]
) -> list[Outcome]:
    """The skipped outcomes of the checks that a project exempts.

    Raises:
        UsageError: an exemption has no reason, or no invariant has its name.
    """
    outcomes = {}
    for text in exemptions:
        match = _EXEMPTION.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--exempt {text}: write NAME=REASON, since an exemption has a reason."
            )
        subject, invariant, reason = match[1], heir(match[2]), match[3]
        if invariant not in invariants:
            hint = nearest(invariant, invariants)
            raise UsageError(f"--exempt: no invariant is called {invariant!r}. {hint}")
        for work in works:
            if subject in (None, work.label) and invariant in work.invariants:
                outcomes[work.label, invariant] = Outcome(
                    work.label, invariant, "skipped", f"exempt: {reason}", seed=work.seed
                )
    return list(outcomes.values())


def without_known(exemptions: Sequence[str]) -> list[str]:
    """The exemptions but those of known failures, which an update tries again."""
    matches = [(text, _EXEMPTION.fullmatch(text)) for text in exemptions]
    return [text for text, match in matches if match is None or not match[3].startswith(KNOWN)]


def as_known(outcome: Outcome) -> Outcome:
    """The outcome, skipped if it is a failure."""
    if outcome.ok:
        return outcome
    reason = f"exempt: {_reason(outcome)}"
    return Outcome(outcome.subject, outcome.invariant, "skipped", reason, seed=outcome.seed)


def update(outcomes: Collection[Outcome]) -> str:
    """Write today's failures into the table of ``pyproject.toml``, and remove what holds again.

    Returns:
        A line that says what the table holds now.

    Raises:
        UsageError: the file cannot be read or written, or holds the table in another form.
    """
    lines = _FILE.read_text("utf-8").splitlines() if _FILE.is_file() else []
    if _HEAD not in lines:
        lines += [*([""] if lines else []), _HEAD]
    start = lines.index(_HEAD) + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))
    tried = {f"{outcome.subject}: {outcome.invariant}" for outcome in outcomes}
    kept = [line for line in lines[start:end] if not _is_known(line, tried)]
    while kept and not kept[-1].strip():
        kept.pop()
    for outcome in (o for o in outcomes if not o.ok):
        entry = f"{outcome.subject}: {outcome.invariant}", _reason(outcome)
        kept.append(" = ".join(json.dumps(text, ensure_ascii=False) for text in entry))
    rest = ["", *lines[end:]] if lines[end:] else []
    new = "\n".join([*lines[:start], *kept, *rest]) + "\n"
    try:
        table = tomllib.loads(new)["tool"]["attnbench"]["exempt"]
    except tomllib.TOMLDecodeError:
        raise UsageError(f"{_FILE}: write the exemptions as a table {_HEAD} of its own.") from None
    write_file(_FILE, new.encode(), "--update-exempt")
    count = sum(reason.startswith(KNOWN) for reason in table.values())
    return f"known failures in {_FILE}: {count}"


def _reason(outcome: Outcome) -> str:
    text = f"{KNOWN}: {first_line(outcome.reason)}"
    return textwrap.shorten(text, _REASON_WIDTH, placeholder=" ...")


def _is_known(line: str, tried: Collection[str]) -> bool:
    """Whether a line of the table is a known failure that was tried again."""
    try:
        entries = tomllib.loads(line)
    except tomllib.TOMLDecodeError:  # a part of a value of several lines
        return False
    return any(key in tried and str(why).startswith(KNOWN) for key, why in entries.items())
