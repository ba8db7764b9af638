"""Running one invariant on one subject: scheduled cases first, then drawn ones, then shrinking."""

from __future__ import annotations

import contextlib
import itertools
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from hypothesis.errors import (
    FlakyFailure,
    HypothesisDeprecationWarning,
    HypothesisException,
    Unsatisfiable,
    UnsatisfiedAssumption,
)
from hypothesis.strategies import SearchStrategy

from attnbench.cases import spaces
from attnbench.cases.case import Case, Domain, schedule
from attnbench.checking.drawing import drawn_cases, explore
from attnbench.checking.faults import fault_at, raised_text
from attnbench.checking.outcomes import CONTRACT, Outcome
from attnbench.checking.profiles import PROFILE, PROFILES, Profile
from attnbench.checking.shrinking import size, smaller
from attnbench.errors import AttnbenchError, InvariantViolation
from attnbench.oracle.references import NoReferenceError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

__all__ = ["PROFILES", "Profile", "run_invariant", "subject_fault"]

_TRIES = 10
"""Cases drawn for each that is wanted, where most are rejected."""


def subject_fault(subject: Subject, error: BaseException) -> bool:
    """Whether an exception was raised inside the subject's own code, or about what it returned."""
    if isinstance(error, AttnbenchError):
        return True
    core = ("attnbench.invariants", "attnbench.checking.runner", "hypothesis")
    modules = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    doors = ("attnbench.subject.subject", "attnbench.oracle.references")
    inside = [i for i, name in enumerate(modules) if name in doors]
    return bool(inside) and not any(name.startswith(core) for name in modules[inside[-1] :])


class _Run:
    """The state of one run: what was seen, and the failure if there is one."""

    def __init__(self, subject: Subject, invariant: Invariant) -> None:
        self.subject, self.invariant = subject, invariant
        self.seen = {"scheduled": 0, "drawn": 0}
        self.rejected = 0
        self.failing: Case | None = None
        self.error: BaseException | None = None
        self.unjudged: str | None = None
        self.shrunk = False

    def once(self, case: Case) -> None:
        """Run the check on one case; raises what it raises, or rejects the case."""
        if self.subject.unsupported(case) is not None:
            raise UnsatisfiedAssumption
        try:
            self.invariant.check(self.subject, case)
        except SystemExit as error:  # it would end the run, which is not the subject's to do
            raise InvariantViolation(f"raised on a legal input: SystemExit: {error}") from error

    def each(self, cases: Iterable[Case], kind: str, enough: int | None = None) -> None:
        """Run the check on one case after the other, until one fails or enough said something."""
        for case in cases:
            try:
                self.once(case)
            except UnsatisfiedAssumption:
                self.rejected += kind == "scheduled"
                continue
            except NoReferenceError as error:
                self.unjudged = str(error)
                return
            except Exception as error:
                self.failing, self.error = case, error
            self.seen[kind] += 1
            if self.error is not None or self.seen[kind] == enough:
                return

    def drawn(
        self,
        strategy: SearchStrategy[Case],
        profile: Profile,
        seed: int | None,
        shrink: bool = True,
    ) -> None:
        """Run the check on drawn cases; those of an unknown domain, Hypothesis shrinks itself."""
        name, count = self.invariant.name, profile.drawn
        try:
            drawn = spaces.drawn_of(strategy)
            if drawn is not None:
                found = drawn_cases(drawn, name, seed)
                self.each(itertools.islice(found, _TRIES * count), "drawn", count)
            else:
                explore(strategy, name, seed, count, self._one_drawn, shrink=shrink)
                self.failing = None
        except Unsatisfiable:
            self.failing = None
        except Exception as error:
            self.error = error
            self.shrunk = shrink

    def _one_drawn(self, case: Case) -> None:
        self.failing = case
        self.once(case)
        self.seen["drawn"] += 1

    def shrink(self, domain: Domain, limit_s: float = 10.0) -> None:
        """Make the failing case smaller, one field at a time, while it goes on failing."""
        assert self.failing is not None
        kind, until = type(self.error), time.monotonic() + limit_s
        progress = True
        while progress and time.monotonic() < until:
            progress = False
            for candidate in smaller(self.failing):
                case = self.subject.legal(candidate)
                if case == self.failing or case not in domain or size(case) >= size(self.failing):
                    continue
                try:
                    self.once(case)
                except UnsatisfiedAssumption:
                    continue
                except Exception as error:
                    if type(error) is kind:
                        self.failing, self.error, progress = case, error, True
                        break
                if time.monotonic() > until:
                    return
        self.shrunk = not progress


def run_invariant(
    subject: Subject,
    invariant: Invariant,
    profile: Profile,
    *,
    device: str = "cpu",
    dtypes: tuple[str, ...] | None = None,
    seed: int | None = None,
    shrink: bool = True,
) -> Outcome:
    """One invariant on one subject, whatever happens in either.

    Args:
        subject, invariant, profile, device, dtypes, seed: as in :func:`attnbench.check`.
        shrink: look for the smallest counterexample; whether there is one is faster to tell.
    """
    started = time.monotonic()
    PROFILE.set(profile)

    def outcome(status: str, reason: str, **more: Any) -> Outcome:
        seconds = time.monotonic() - started
        return Outcome(subject.name, invariant.name, status, reason, seconds=seconds, **more)

    try:
        reason = skip_reason(subject, invariant)
        if reason is None:
            strategy = invariant.cases(subject) if invariant.cases else spaces.cases(subject)
            strategy = _on_device(subject, strategy, device, dtypes)
    except Exception as error:
        return outcome("error", _own_fault(invariant, error))
    if reason is not None:
        return outcome("skipped", reason)
    domain, listed = spaces.domain_of(strategy), spaces.listed_of(strategy)
    run, quota, cases = _Run(subject, invariant), profile.quota, []
    if listed is not None:
        cases, quota = [c.replace(seed=c.seed + (seed or 0)) for c in listed[0]], listed[1]
    elif domain is not None:
        brief = profile.name == "quick"
        legal = map(subject.legal, schedule(domain, seed=seed or 0, brief=brief))
        cases = [case for case in legal if case in domain]
    with warnings.catch_warnings():  # assume() rejects a scheduled case as well as a drawn one
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        run.each(cases, "scheduled")
        if run.error is None and run.unjudged is None and listed is None:
            run.drawn(strategy, profile, seed, shrink)
        if shrink and run.failing is not None and domain is not None:
            run.shrink(domain)
    if run.unjudged is not None:
        return outcome("skipped", run.unjudged)
    if run.error is None:
        verdict = _nothing_to_run(run, cases, domain) or _verdict(run, quota)
        return outcome(*verdict, cases=sum(run.seen.values()))
    status, text = _explained(run)
    return outcome(
        status,
        text,
        cases=sum(run.seen.values()) or 1,
        counterexample=run.failing.id if run.failing else None,
        shrunk=run.shrunk,
        error=getattr(run.error, "error", None),
    )


def skip_reason(subject: Subject, invariant: Invariant) -> str | None:
    """Why an invariant is skipped on a subject; ``None`` if it is run."""
    if subject.kind not in invariant.kinds:
        return f"it says nothing of a {subject.kind}"
    if invariant.name in subject.exempt:
        return f"exempt: {subject.exempt[invariant.name]}"
    if invariant.law and invariant.name not in subject.laws:
        return "law not declared"
    return invariant.applies(subject) if invariant.applies else None


def _on_device(
    subject: Subject, strategy: SearchStrategy[Case], device: str, dtypes: tuple[str, ...] | None
) -> SearchStrategy[Case]:
    drawn, listed = spaces.drawn_of(strategy), spaces.listed_of(strategy)
    if listed is not None:
        cases, enough = listed
        legal = [d for d in subject.dtypes if dtypes is None or d in dtypes]
        kept = [
            case.replace(device=device, dtype=case.dtype if case.dtype in legal else legal[0])
            for case in cases
        ]
        return spaces.listed(*kept, enough=min(enough, len(set(kept))))
    if drawn is None:
        return strategy.map(lambda case: case.replace(device=device))
    domain = drawn.domain
    wanted = tuple(d for d in domain.dtypes if dtypes is None or d in dtypes)
    if device == "cpu" and wanted == domain.dtypes:
        return strategy
    if not wanted:
        raise ValueError(f"none of the dtypes {domain.dtypes} is among those asked for")
    return replace(drawn, domain=replace(domain, devices=(device,), dtypes=wanted)).strategy()


def _nothing_to_run(run: _Run, cases: list[Case], domain: Domain | None) -> tuple[str, str] | None:
    """Skipped where the subject itself rules every case out; that is no verdict on the contract."""
    if sum(run.seen.values()):
        return None
    reasons = list(dict.fromkeys(run.subject.unsupported(case) for case in cases))
    if cases and None not in reasons:
        told = f"it runs none of the {len(cases)} scheduled cases: {'; '.join(map(str, reasons))}"
    elif domain is not None and not cases:
        told = (
            "sizes allows none of its cases: L and S up to "
            f"{domain.max_len}, Eq, Ek and Ev up to {domain.max_features}"
        )
    else:
        return None
    return "inconclusive" if run.invariant.name == CONTRACT else "skipped", told


def _verdict(run: _Run, quota: int) -> tuple[str, str]:
    seen = f"{run.seen['scheduled']} scheduled, {run.seen['drawn']} drawn"
    total = sum(run.seen.values())
    if total < quota:
        return "inconclusive", (
            f"only {total} cases said something ({seen}, {run.rejected} scheduled ones rejected); "
            f"at least {quota} are needed"
        )
    return "passed", seen


def _explained(run: _Run) -> tuple[str, str]:
    error = run.error
    assert error is not None
    where = (
        f"\n  [{run.invariant.name} on {run.subject.name}, {run.failing.id if run.failing else ''}]"
    )
    if isinstance(error, InvariantViolation):
        text = str(error)
    elif isinstance(error, FlakyFailure):
        text = "a case failed once and passed when run again"
    elif not isinstance(error, HypothesisException) and subject_fault(run.subject, error):
        text = raised_text(run.subject, error)
    else:
        return "error", _own_fault(run.invariant, error)
    return "failed", f"{text}{_cause(run, text)}{where}"


def _cause(run: _Run, text: str) -> str:
    """What is wrong with the answer itself at the failing case, which explains the failure."""
    fault = fault_at(run.subject, run.failing) if run.failing is not None else None
    if fault is None or fault.kind not in ("changes", "random") or fault.text in text:
        return ""
    return f"\n  because {fault.text}"


def _own_fault(invariant: Invariant, error: BaseException) -> str:
    from attnbench.registry.catalog import registry  # only a broken invariant asks who brought it

    frames = traceback.extract_tb(error.__traceback__)
    last = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return (
        f"the invariant itself raised {type(error).__name__}: {error}{last}; "
        f"it comes from {registry().invariant_plugin(invariant.name)}"
    )


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Torch's global generator may be seeded here, and is put back; one thread, five times faster.

    The tensors of a check are small: a second thread waits for the first.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
