"""The search for one change of the source by which all that failed holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attnbench import Subject
from attnbench_mend.edits import edits
from attnbench_mend.running import SourceFile
from attnbench_mend.source_text import Edit
from attnbench_mend.traced_lines import TracedLines
from attnbench_mend.trials import Trials

SECONDS = 6.0
"""Seconds of a search, for which the report of a subject waits."""

_MOST_FAILURES = 8
"""Most failures that a change is held to at their cases."""


def mend(subject: Subject, failures: Sequence[Any], seconds: float) -> tuple[str, Edit] | None:
    """The file and the smallest change of it that is approved; ``None`` if there is none.

    Args:
        subject: the subject that failed.
        failures: its failures.
        seconds: most seconds of the search.
    """
    deadline = time.monotonic() + seconds
    failures = [failure for failure in failures if failure.case is not None][:_MOST_FAILURES]
    if not failures:
        return None
    trials = Trials(subject, failures)
    if not trials.can_be_held:
        return None
    failing, ordinary = TracedLines(), TracedLines()
    with failing.watched():
        trials.failing_again()
    with ordinary.watched():
        trials.ordinary_again()
    told = {(clue.file, clue.line) for failure in failures for clue in failure.clues}
    found: list[tuple[SourceFile, Edit]] = []
    for name, ran in failing.ran.items():
        source = SourceFile(name)
        found += [(source, edit) for edit in edits(source.text, ran)]

    def order(one: tuple[SourceFile, Edit]) -> tuple[bool, int, bool]:
        source, edit = one
        both = edit.line in ordinary.ran.get(source.name, {})
        return (source.name, edit.line) not in told, edit.rank, both

    for source, edit in sorted(found, key=order):
        if time.monotonic() > deadline:
            return None
        with source.running(edit.applied(source.text)) as runs:
            if runs and trials.approve() and trials.approve_whole():
                return source.name, edit
    return None
