"""Run one invariant on one subject, and determine the outcome."""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from dataclasses import replace
from typing import Any

from hypothesis import Phase
from hypothesis.errors import HypothesisDeprecationWarning, HypothesisException

from attnbench.cases.case import Case
from attnbench.cases.case_space import CaseSpace, NoCaseError, space_of
from attnbench.cases.case_strategies import cases, listed
from attnbench.checking.answer_faults import KnownFault, fault_at, raised_text
from attnbench.checking.call_cost import calls_at
from attnbench.checking.case_search import CaseSearch, IllegalCaseError, UnjudgedError
from attnbench.checking.explain.region import region_of
from attnbench.checking.gaps import declaration
from attnbench.checking.hypothesis_engine import failures, phases
from attnbench.checking.outcomes import KEEPS_CONTRACT, Failure, Outcome
from attnbench.checking.profiles import Effort, Profile, effort_of
from attnbench.distributions import PROPERTIES
from attnbench.errors import AttnbenchError, InvariantViolation, JudgementError, RefusalError
from attnbench.processes.tracebacks import source_line_of
from attnbench.specs import Invariant
from attnbench.subject.devices import seeded as seeded
from attnbench.subject.subject import Subject


def subject_fault(subject: Subject, error: BaseException) -> bool:
    """Whether an exception was raised in the subject's own code, or about its result."""
    if isinstance(error, AttnbenchError):
        return True
    core = (*PROPERTIES, CaseSearch.__module__, "hypothesis")
    modules = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    doors = {"attnbench.oracle.references", *(kind.__module__ for kind in type(subject).__mro__)}
    places = [i for i, name in enumerate(modules) if name in doors]
    return bool(places) and not any(name.startswith(core) for name in modules[places[-1] :])


def run_invariant(
    subject: Subject,
    invariant: Invariant,
    profile: Profile,
    *,
    device: str = "cpu",
    dtypes: tuple[str, ...] | None = None,
    seed: int | None = None,
    shrink: bool = True,
    case: Case | None = None,
    known: KnownFault | None = None,
) -> Outcome:
    """Run one invariant on one subject; exceptions in either become the outcome.

    There are three executions: stored failures, the schedule, and drawn cases. The first failure
    ends the run, and is then shrunk and stored.

    Args:
        subject, invariant, profile, device, dtypes, seed: as in :func:`attnbench.check`.
        shrink: whether to look for the smallest counterexample and use the database of failures;
            without it, the run is faster.
        case: the only case to run; ``None`` to look for one that fails.
        known: a fault whose calls are left out.
    """
    started = time.monotonic()
    store = failures() if shrink and case is None else None
    fields: dict[str, Any] = {}
    try:
        with (
            effort_of(Effort(profile, store, shrink)),
            warnings.catch_warnings(),  # assume() rejects scheduled cases, not only drawn ones
        ):
            warnings.simplefilter("ignore", HypothesisDeprecationWarning)
            reason = skip_reason(subject, invariant)
            if reason is not None:
                status, fields = "skipped", {"undeclared": is_undeclared(subject, invariant)}
            else:
                space = _space(subject, invariant, device, dtypes, case)
                search = CaseSearch(subject, invariant, profile, space, store, known)
                search.run(seed, shrink=shrink and bool(phases(Phase.shrink)))
                status, reason, fields = _fields_of(search)
    except (NoCaseError, UnjudgedError) as error:
        status, reason = "skipped", str(error)
    except IllegalCaseError as error:
        status, reason = "error", str(error)
    except Exception as error:
        status, reason = "error", _invariant_fault(invariant, error)
    seconds = time.monotonic() - started
    return Outcome(subject.name, invariant.name, status, reason, seconds=seconds, **fields)


def _space(
    subject: Subject,
    invariant: Invariant,
    device: str,
    dtypes: tuple[str, ...] | None,
    case: Case | None,
) -> CaseSpace:
    if case is not None:
        legal = subject.legal(case)
        if legal != case and subject.legal(legal) == legal:  # as for the cases of a strategy
            raise NoCaseError(f"not legal for {subject.name}; the nearest legal case is {legal.id}")
        return space_of(listed(case))
    strategy = (invariant.cases or cases)(subject)
    names = None if dtypes is None else tuple(d for d in subject.dtypes if d in dtypes)
    return space_of(strategy).on(device, names)


def skip_reason(subject: Subject, invariant: Invariant) -> str | None:
    """The reason why an invariant is skipped on a subject, or ``None`` if it runs."""
    if subject.kind not in invariant.kinds:
        return f"it does not apply to a {subject.kind}"
    if invariant.name in subject.exempt:
        return f"exempt: {subject.exempt[invariant.name]}"
    if is_undeclared(subject, invariant):
        return "law not declared"
    return invariant.applies(subject) if invariant.applies else None


def is_undeclared(subject: Subject, invariant: Invariant) -> bool:
    """Whether an invariant is a law for subjects of this kind that this one does not declare."""
    return (
        invariant.law
        and subject.kind in invariant.kinds
        and invariant.name not in {*subject.laws, *subject.exempt}
    )


def _fields_of(run: CaseSearch) -> tuple[str, str, dict[str, Any]]:
    """The status, the reason, and further fields of the outcome."""
    fields = {
        "cases": run.counts.total() - run.counts["replayed"] * (run.error is None),
        "note": run.subject.limited,
    }
    if run.error is None:
        return *(run.exclusion() or _verdict(run)), fields
    status, reason, failure = _found(run, run.error)
    return status, reason, {**fields, "failure": failure}


def _verdict(run: CaseSearch) -> tuple[str, str]:
    text = f"{run.counts['scheduled']} scheduled, {run.counts['drawn']} drawn"
    if run.counts["replayed"]:
        text += f", {run.counts['replayed']} replayed that failed before"
    total = run.counts["scheduled"] + run.counts["drawn"]
    if total < run.quota and run.refusals:
        return "skipped", run.left_out(f"only {total} ({text})")
    if total < run.quota:
        reasons = [reason for reason, _ in run.rejections.most_common(2) if reason]
        told = f": {'; '.join(reasons)}" if reasons else ""
        return "inconclusive", (
            f"only {total} cases said something ({text}, {run.rejections.total()} scheduled ones "
            f"rejected{told}); at least {run.quota} are needed"
        )
    if run.omitted:
        cost = calls_at(run.subject, Case((2,), 9, 9))
        text += (
            f", and not on the {run.omitted} largest, which would take too long: a call at L = S = "
            f"9 takes as long as about {cost:,.0f} functions of Python"
        )
    return "passed", text


def _found(run: CaseSearch, error: BaseException) -> tuple[str, str, Failure | None]:
    """The status, the reason and the failure for an exception of a check."""
    if isinstance(error, InvariantViolation):
        text = str(error)
    elif isinstance(error, JudgementError):
        return "error", str(error), None
    elif not isinstance(error, HypothesisException) and subject_fault(run.subject, error):
        text = raised_text(run.subject, error)
    else:
        return "error", _invariant_fault(run.invariant, error), None
    fault = None
    with contextlib.suppress(RefusalError):  # the call may be derived from one that is refused
        fault = fault_at(run.subject, run.failing) if run.failing is not None else None
    behind = fault is not None and fault.kind in ("changes", "random")
    kind = ""
    if fault is not None and (behind or run.invariant.name == KEEPS_CONTRACT):
        kind = fault.kind
        text += f"\n  because {fault.text}" * (behind and fault.text not in text)
    return "failed", text, _failure(run, error, kind)


def _failure(run: CaseSearch, error: BaseException, fault: str) -> Failure:
    """The fields of a failure."""
    cause = error.__cause__ if isinstance(error, InvariantViolation) else error
    is_raised = cause is not None and not isinstance(cause, AttnbenchError)
    failure = Failure(
        invariant=run.invariant.name,
        hint=run.invariant.hint,
        raised=type(cause).__name__ if is_raised else None,
        source_line=source_line_of(cause) if is_raised and cause is not None else None,
        fault=fault,
        case=run.failing.id if run.failing else None,
        smallest=run.shrunk,
        replayed=run.replayed,
        device_lost=run.device_lost,
        where=run.where_alone() if run.shrunk else "",
        by_design=declaration(run.subject, run.invariant.name),
    )
    if not isinstance(error, InvariantViolation):
        return failure
    names = ("quantity", "place", "got", "expected", "allowed", "program")
    values = {name: getattr(error, name) for name in names}
    return replace(failure, **values, multiple=error.error, region=region_of(error))


def _invariant_fault(invariant: Invariant, error: BaseException) -> str:
    from attnbench.registry.catalog import registry  # only broken invariants need it

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return (
        f"the invariant itself raised {type(error).__name__}: {error}{place}; "
        f"it comes from {registry().invariant_plugin(invariant.name)}"
    )
