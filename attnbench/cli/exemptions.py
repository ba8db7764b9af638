"""Exemptions from invariants that a project makes, and the table of them in ``pyproject.toml``."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from attnbench.checking.outcomes import Outcome
from attnbench.checking.work import Work
from attnbench.cli.printing.output_files import write_file
from attnbench.errors import UsageError, first_line, nearest
from attnbench.specs.heirs import heir

KNOWN = "known failure"
"""How the reason of an exemption begins that :func:`updated` writes, and may remove."""

_FILE = Path("pyproject.toml")
_HEAD = "[tool.attnbench.exempt]"
_EXEMPTION = re.compile(r"(?:(.*?): )??(\w+)\s*=\s*(.+)", re.DOTALL)
_REASON_WIDTH = 120


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
        subject, invariant, reason = match.groups()
        invariant = heir(invariant)
        if invariant not in invariants:
            hint = nearest(invariant, invariants)
            raise UsageError(f"--exempt: no invariant is called {invariant!r}. {hint}")
        for work in works:
            if subject in (None, work.label) and invariant in work.invariants:
                outcomes[work.label, invariant, work.seed] = Outcome(
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
    text = _FILE.read_text("utf-8") if _FILE.is_file() else ""
    failures = {f"{o.subject}: {o.invariant}": _reason(o) for o in outcomes if not o.ok}
    tried = {f"{o.subject}: {o.invariant}" for o in outcomes}
    new = _with_entries(text, failures, tried)
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


def _with_entries(text: str, failures: Mapping[str, str], tried: Collection[str]) -> str:
    """The text of the file with these entries in the table, in place of others that were tried."""
    lines = text.splitlines()
    if _HEAD not in lines:
        lines += [*([""] if lines else []), _HEAD]
    start = lines.index(_HEAD) + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))
    kept = [line for line in lines[start:end] if not _is_known(line, tried)]
    while kept and not kept[-1].strip():
        kept.pop()
    entries = (json.dumps(value, ensure_ascii=False) for item in failures.items() for value in item)
    added = [f"{key} = {reason}" for key, reason in zip(entries, entries, strict=True)]
    rest = ["", *lines[end:]] if lines[end:] else []
    return "\n".join([*lines[:start], *kept, *added, *rest]) + "\n"


def _is_known(line: str, tried: Collection[str]) -> bool:
    """Whether a line of the table is a known failure that was tried again."""
    try:
        entries = tomllib.loads(line)
    except tomllib.TOMLDecodeError:  # a part of a value of several lines
        return False
    return any(key in tried and str(why).startswith(KNOWN) for key, why in entries.items())
