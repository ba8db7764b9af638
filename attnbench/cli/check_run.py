"""A check as the commands run it: planned and run in child processes, and collected as it comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from attnbench.cases.case import Case
from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.checking.gaps import Gap, coverage_of
from attnbench.checking.outcomes import Outcome, key_of, notes_of
from attnbench.checking.parallel import works_of
from attnbench.cli.configuration import KNOWN, as_known, exempted, update
from attnbench.cli.plugin_loading import PLAN, ask
from attnbench.processes.pool import MEMORY_GIB
from attnbench.registry.address import Address
from attnbench.report.printing import progress

_TIMEOUTS_S = {"quick": 120.0, "default": 240.0, "thorough": 900.0}


class Check:
    """A check of some subjects: its plan, and the outcomes so far.

    Args:
        targets: addresses of the subjects; ``None`` for all that the profile checks.
        exempt: exemptions, ``NAME=REASON`` or ``SUBJECT: NAME=REASON``.
        profile, device, dtypes, invariants, seed: as of :func:`attnbench.check`.
        case: id of the only case that runs.

    Raises:
        AttnbenchError: a target, a name or an exemption is wrong.
    """

    def __init__(
        self,
        targets: Sequence[Address] | None,
        exempt: Sequence[str] = (),
        *,
        profile: str = "quick",
        device: str = "cpu",
        dtypes: Sequence[str] | None = None,
        invariants: Sequence[str] | None = None,
        seed: int | None = None,
        case: str | None = None,
    ) -> None:
        if case is not None:
            Case.from_id(case)  # raises UsageError if it is none
        self.profile, self.seed, self.interrupted = profile, seed, False
        self._notes: list[str] = []
        self._started = time.monotonic()
        self._options = {"profile": profile, "device": device, "dtypes": dtypes}
        self.plan = ask(PLAN, targets=targets, invariants=invariants or None, **self._options)
        self._options |= {"user_invariants": tuple(invariants or ()), "case": case}
        self.statements = dict(self.plan["invariants"])
        works = works_of(self.plan["subjects"], list(self.statements), self.plan["of_subject"])
        self.works = [replace(work, seed=seed) for work in works]
        self.expected = {work.label: len(work.invariants) for work in works}
        names = [row["invariant"] for row in ask("invariant_rows")] if exempt else []
        self._by_key = {key_of(skip): skip for skip in exempted(exempt, self.works, names)}

    def run(
        self,
        show: Callable[[Outcome], None] = lambda outcome: None,
        *,
        jobs: int = 0,
        timeout_s: float | None = None,
        memory_gib: float = MEMORY_GIB,
        cluster: str | None = None,
        fail_fast: bool = False,
    ) -> None:
        """Run what is not exempt, until the last outcome, a failure with ``fail_fast``, or Ctrl-C.

        Args:
            show: called with each outcome as it comes.
            jobs, timeout_s, memory_gib: number of processes, and what an invariant may take.
            cluster: address of a cluster to run on.
            fail_fast: stop at the first outcome that is not good.
        """
        exempt = tuple(self._by_key.values())
        keys = {key_of(skip) for skip in exempt}
        works = [
            replace(w, invariants=tuple(n for n in w.invariants if (w.label, n) not in keys))
            for w in self.works
        ]
        checks = parallel.run_checks(
            works,
            self._options,
            jobs=jobs,
            timeout_s=timeout_s or _TIMEOUTS_S[self.profile],
            memory_gib=memory_gib,
            cluster=cluster,
            explainers=self.plan["explainers"],
        )
        for outcome in exempt:
            show(outcome)
        count = sum(self.expected.values()) - len(exempt)
        try:
            # the children of the checks end here, also early
            with contextlib.closing(checks), progress(count, "checking") as advance:
                for outcome in checks:
                    is_new = key_of(outcome) not in self._by_key
                    self._by_key[key_of(outcome)] = outcome
                    show(outcome)
                    advance(is_new, f"{outcome.subject}: {outcome.invariant}")
                    if fail_fast and not outcome.ok:
                        self._notes.append("stopped at the first failure (--fail-fast)")
                        break
        except KeyboardInterrupt:
            self.interrupted = True
            self._notes.append(f"interrupted after {len(self._by_key)} outcomes")

    def exempt_failures(self) -> None:
        """Write the failures into the project's table of exemptions; from now on they are known.

        Raises:
            UsageError: the file of the table cannot be changed.
        """
        self._notes.append(update(self._by_key.values()))
        self._by_key = {key: as_known(outcome) for key, outcome in self._by_key.items()}

    @property
    def seconds(self) -> float:
        """Seconds since the check began."""
        return time.monotonic() - self._started

    def report(self) -> CheckReport:
        """The report of the outcomes so far, in the order of the plan."""
        labels, names = list(self.expected), list(self.statements)
        outcomes = sorted(
            self._by_key.values(), key=lambda o: (labels.index(o.subject), names.index(o.invariant))
        )
        notes = [*self._notes, *notes_of(outcomes)]
        if self.plan["left_out"]:
            count = f"{self.plan['left_out']} more subjects, which have options"
            notes.append(f"quick left out {count}; attnbench check --profile default checks them")
        gaps = coverage_of((Gap(**row) for row in self.plan["gaps"]), self.plan["laws"], outcomes)
        about = tuple(self.plan["about"])
        return CheckReport(tuple(outcomes), self.profile, self.seed, tuple(notes), about, gaps)


def statuses_of(report: CheckReport) -> list[str]:
    """The statuses for the exit code; where everything was skipped, nothing is known."""
    statuses = [outcome.status for outcome in report.outcomes]
    is_known = any(o.reason.startswith(f"exempt: {KNOWN}") for o in report.of("skipped"))
    return statuses if is_known or "passed" in statuses else [*statuses, "inconclusive"]
