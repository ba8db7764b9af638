"""Failures that a project tolerates: exemptions with reasons, and a baseline.

A baseline lists the failures that are known, so that only new ones fail. Its file has one line
``subject: invariant`` for each; a line that begins with ``#`` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnbench.checking.outcomes import Outcome
from attnbench.checking.work import Work
from attnbench.errors import UsageError, first_line, nearest
from attnbench.specs.heirs import heir

_EXEMPTION = re.compile(r"(?:(.*?): )??(\w+)\s*=\s*(.+)", re.DOTALL)
_HEAD = "# Known failures: they are skipped. `attnbench check --update-baseline` wrote this file.\n"


@dataclass(frozen=True)
class KnownFailures:
    """Known failures; of these, those that were skipped are noted."""

    path: Path | None = None
    entries: frozenset[str] = frozenset()
    skipped: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path | None, *, update: bool = False) -> KnownFailures:
        """Read a baseline; ``None`` is an empty one.

        Args:
            path: the file.
            update: whether the file is about to be written, so that it need not exist.

        Raises:
            UsageError: there is no such file, or a line is no ``subject: invariant``.
        """
        if path is None or (update and not path.exists()):
            return cls(path)
        try:
            lines = path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            raise UsageError(
                f"there is no baseline {path}; --update-baseline writes one of today's failures."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the baseline {path}: {error}.") from None
        return cls(path, frozenset(_entries(lines, path)))

    def skip_known(self, outcome: Outcome) -> Outcome:
        """The outcome, skipped if it is a known failure."""
        if outcome.ok or _entry(outcome) not in self.entries:
            return outcome
        self.skipped.add(_entry(outcome))
        reason = f"known failure, in {self.path}: {first_line(outcome.reason)}"
        return replace(outcome, status="skipped", reason=reason, failure=None, command=None)

    def has_skipped(self, outcome: Outcome) -> bool:
        """Whether it is an outcome that :meth:`skip_known` made of a known failure."""
        return outcome.status == "skipped" and _entry(outcome) in self.skipped

    def stale(self, outcomes: Collection[Outcome], names: Collection[str] | None) -> list[str]:
        """Entries of checked subjects whose invariant passed, or is gone.

        Args:
            outcomes: the outcomes of the check, known failures as :meth:`skip_known` gives them.
            names: names of the invariants that were asked for; ``None`` if all were.
        """
        subjects = {o.subject for o in outcomes}
        return sorted(
            entry
            for entry in self.entries - {_entry(o) for o in outcomes if o.status != "passed"}
            if entry.rpartition(": ")[0] in subjects
            and (names is None or entry.rpartition(": ")[2] in names)
        )

    def updated(
        self, outcomes: Collection[Outcome], names: Collection[str] | None
    ) -> KnownFailures:
        """The baseline with the failures of a check, and the entries that it did not test."""
        others = self.entries - {*self.stale(outcomes, names)}
        return replace(self, entries=others | {_entry(o) for o in outcomes if not o.ok})

    @property
    def text(self) -> str:
        """The content of the file."""
        return _HEAD + "".join(f"{entry}\n" for entry in sorted(self.entries))

    def remarks(
        self,
        outcomes: Collection[Outcome],
        names: Collection[str] | None,
        subjects: Collection[str] | None,
    ) -> list[str]:
        """Lines about entries that no longer fail, and those of none of the subjects, if given."""
        held = self.stale(outcomes, names)
        gone = [
            entry
            for entry in sorted(self.entries)
            if subjects is not None and entry.rpartition(": ")[0] not in subjects
        ]
        return [
            f"{self.path}: {what}: {', '.join(entries)} ({advice})"
            for what, entries, advice in (
                ("no longer failing", held, "--update-baseline removes it"),
                ("no target has the subject of", gone, "delete the line if it is gone"),
            )
            if entries
        ]


def _entry(outcome: Outcome) -> str:
    return f"{outcome.subject}: {outcome.invariant}"


def _entries(lines: Iterable[str], path: Path) -> Iterable[str]:
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            subject, _, invariant = line.rpartition(": ")
            if not subject or not invariant.isidentifier():
                raise UsageError(f"{path}:{number}: {line!r} is not of the form subject: invariant")
            yield line


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
