"""The hook: at most one change of the source by which all that failed holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench import Clue, Subject, hookimpl


@hookimpl
def attnbench_explain(subject: Subject, failures: Sequence[Any]) -> Iterator[Clue]:
    """One small change by which what failed holds, if there is one that changes nothing else."""
    from attnbench_mend.search import SECONDS, mend  # libcst, which only a failure needs

    is_random = any(failure.fault == "random" for failure in failures)  # nothing holds by a change
    found = None if is_random else mend(subject, failures, SECONDS)
    if found is not None:
        file, edit = found
        place = f"{Path(file).name}:{edit.line}"
        yield Clue(
            text=f"with {edit.new!r} in place of {edit.old!r} at {place}, all that "
            "failed holds, and ordinary calls stay as they are",
            file=file,
            line=edit.line,
            kind="try",
        )
