"""Diagnosis: which known bugs fail in just the pattern in which a subject fails."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources

from attnbench.checking.outcomes import Outcome

__all__ = ["diagnose", "diagnosed"]

_NEAR = 0.8  # share of invariants, of those that fail on either, that fail on both
_MOST = 3  # bugs; what more have in common tells none of them
_RAN = 0.5  # share of a known bug's invariants that must have been run: one alone says little


@functools.cache
def _table() -> list[tuple[frozenset[str], str | None]]:
    """What fails on each mutant, as measured by the kill matrix; its bug if it can be looked up."""
    text = (
        resources.files("attnbench.checking.evidence")
        .joinpath("diagnoses.json")
        .read_text(encoding="utf-8")
    )
    return [
        (frozenset(row["fails"]), f"as in {', '.join(named)}: {row['mistake']}" if named else None)
        for row in json.loads(text)
        for named in [[bug for bug in row["bugs"] if "#" in bug]]
    ]


def diagnosed(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes of any number of subjects; the first failure of each has its diagnosis."""
    outcomes = list(outcomes)
    first: dict[str, int] = {}
    for index, outcome in enumerate(outcomes):
        if outcome.status == "failed":
            first.setdefault(outcome.subject, index)
    for subject, index in first.items():
        text = diagnose(outcome for outcome in outcomes if outcome.subject == subject)
        outcomes[index] = replace(outcomes[index], diagnosis=text)
    return tuple(outcomes)


def diagnose(outcomes: Iterable[Outcome]) -> str | None:
    """The known bugs that fail as a subject does; ``None`` if none does.

    Args:
        outcomes: of one subject. Only invariants that were run on it are held against a bug.
    """
    outcomes = list(outcomes)
    failed = {o.invariant for o in outcomes if o.status == "failed"}
    ran = failed | {o.invariant for o in outcomes if o.status == "passed"}
    found = []
    for fails, text in _table():
        expected = fails & ran
        either = expected | failed
        if len(expected) < _RAN * len(fails):
            continue
        if expected & failed and (near := len(expected & failed) / len(either)) >= _NEAR:
            found.append((near, text))
    if not found:
        return None
    best = max(near for near, _ in found)
    alike = [text for near, text in found if near == best]
    known = [text.removesuffix(".") for text in alike if text is not None]
    return "; ".join(known) if known and len(alike) <= _MOST else None
