"""Run one invariant on one subject, and determine the outcome."""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import Phase
from hypothesis.errors import HypothesisDeprecationWarning, HypothesisException

from attnbench.cases.case import Case
from attnbench.cases.drawing import NoCaseError, space_of
from attnbench.cases.spaces import cases
from attnbench.checking.answer_faults import fault_at, raised_text
from attnbench.checking.call_cost import calls_at
from attnbench.checking.case_search import CaseSearch, IllegalCaseError, UnjudgedError
from attnbench.checking.hypothesis_engine import Failures, failures, phases
from attnbench.checking.outcomes import Outcome
from attnbench.checking.profiles import PROFILES, Profile, effort_of
from attnbench.errors import AttnbenchError, InvariantViolation, JudgementError, RefusalError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

__all__ = ["PROFILES", "Profile", "run_invariant", "seeded", "skip_reason", "subject_fault"]


def subject_fault(subject: Subject, error: BaseException) -> bool:
    """Whether an exception was raised in the subject's own code, or about its result."""
    if isinstance(error, AttnbenchError):
        return True
    core = (
        "attnbench.invariants",
        "attnbench.checking.case_search",
        "hypothesis",
    )
    modules = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    doors = (
        "attnbench.subject.subject",
        "attnbench.subject.layer",
        "attnbench.oracle.references",
    )
    inside = [i for i, name in enumerate(modules) if name in doors]
    return bool(inside) and not any(name.startswith(core) for name in modules[inside[-1] :])


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
    """Run one invariant on one subject; exceptions in either become the outcome.

    There are three executions: stored failures, the schedule, and drawn cases. The first failure
    ends the run, and is then shrunk and stored.

    Args:
        subject, invariant, profile, device, dtypes, seed: as in :func:`attnbench.check`.
        shrink: whether to look for the smallest counterexample and use the database of failures;
            without it, the run is faster.
    """
    started = time.monotonic()
    kept = failures() if shrink else None
    more: dict[str, Any] = {}
    try:
        with (
            effort_of(profile, kept, shrink=shrink),
            warnings.catch_warnings(),  # assume() rejects scheduled cases, not only drawn ones
        ):
            warnings.simplefilter("ignore", HypothesisDeprecationWarning)
            reason = skip_reason(subject, invariant)
            if reason is not None:
                status = "skipped"
            else:
                search = _search(subject, invariant, profile, device, dtypes, kept)
                search.run(seed, shrink=shrink and bool(phases(Phase.shrink)))
                status, reason, more = _told(search)
    except (NoCaseError, UnjudgedError) as error:
        status, reason = "skipped", str(error)
    except IllegalCaseError as error:
        status, reason = "error", str(error)
    except Exception as error:
        status, reason = "error", _own_fault(invariant, error)
    seconds = time.monotonic() - started
    return Outcome(subject.name, invariant.name, status, reason, seconds=seconds, **more)


def _search(
    subject: Subject,
    invariant: Invariant,
    profile: Profile,
    device: str,
    dtypes: tuple[str, ...] | None,
    kept: Failures | None,
) -> CaseSearch:
    strategy = (invariant.cases or cases)(subject)
    wanted = None if dtypes is None else tuple(d for d in subject.dtypes if d in dtypes)
    space = space_of(strategy).on(device, wanted)
    return CaseSearch(subject, invariant, profile, space, kept)


def skip_reason(subject: Subject, invariant: Invariant) -> str | None:
    """The reason why an invariant is skipped on a subject, or ``None`` if it runs."""
    if subject.kind not in invariant.kinds:
        return f"it does not apply to a {subject.kind}"
    if invariant.name in subject.exempt:
        return f"exempt: {subject.exempt[invariant.name]}"
    if invariant.law and invariant.name not in subject.laws:
        return "law not declared"
    return invariant.applies(subject) if invariant.applies else None


def _told(run: CaseSearch) -> tuple[str, str, dict[str, Any]]:
    """The status, the reason, and further fields of the outcome."""
    cases = run.seen.total() - run.seen["replayed"] * (run.error is None)
    if run.error is None:
        return *(run.ruled_out() or _verdict(run)), {"cases": cases, "note": _note(run)}
    more = {
        "cases": cases,
        "note": _note(run),
        "counterexample": run.failing.id if run.failing else None,
        "shrunk": run.shrunk,
        "error": getattr(run.error, "error", None),
    }
    return *_explained(run), more


def _note(run: CaseSearch) -> str:
    """A sentence about the store of failures, if it could not be read or written."""
    return run.kept.trouble if run.kept is not None else ""


def _verdict(run: CaseSearch) -> tuple[str, str]:
    seen = f"{run.seen['scheduled']} scheduled, {run.seen['drawn']} drawn"
    if run.seen["replayed"]:
        seen += f", {run.seen['replayed']} replayed that failed before"
    total = run.seen["scheduled"] + run.seen["drawn"]
    if total < run.quota and run.refusals:
        return "skipped", f"it refuses all but {total} of its cases ({seen}): {run.refused}"
    if total < run.quota:
        return "inconclusive", (
            f"only {total} cases said something ({seen}, {run.rejections.total()} scheduled ones "
            f"rejected{_reasons(run)}); at least {run.quota} are needed"
        )
    if run.left_out:
        entered = calls_at(run.subject, Case((2,), 9, 9))
        seen += (
            f"; {run.left_out} left out, the largest: a call at L = S = 9 takes as long as about "
            f"{entered:,.0f} functions of Python"
        )
    return "passed", seen


def _reasons(run: CaseSearch) -> str:
    reasons = [reason for reason, _ in run.rejections.most_common(2) if reason]
    return f": {'; '.join(reasons)}" if reasons else ""


def _explained(run: CaseSearch) -> tuple[str, str]:
    error = run.error
    assert error is not None
    where = (
        f"\n  [{run.invariant.name} on {run.subject.name}, {run.failing.id if run.failing else ''}]"
    )
    if run.replayed:
        where += "\n  replayed: this case failed in an earlier run, and was tried first"
    if isinstance(error, InvariantViolation):
        text = str(error)
    elif isinstance(error, JudgementError):
        return "error", f"{error}{where}"
    elif not isinstance(error, HypothesisException) and subject_fault(run.subject, error):
        text = raised_text(run.subject, error)
    else:
        return "error", _own_fault(run.invariant, error)
    return "failed", f"{text}{_cause(run, text)}{where}"


def _cause(run: CaseSearch, text: str) -> str:
    """A fault of the answer itself at the failing case, which explains the failure."""
    try:
        fault = fault_at(run.subject, run.failing) if run.failing is not None else None
    except RefusalError:  # the failing call was derived from one that the subject refuses
        return ""
    if fault is None or fault.kind not in ("changes", "random") or fault.text in text:
        return ""
    return f"\n  because {fault.text}"


def _own_fault(invariant: Invariant, error: BaseException) -> str:
    from attnbench.registry.catalog import registry  # only broken invariants need it

    frames = traceback.extract_tb(error.__traceback__)
    last = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return (
        f"the invariant itself raised {type(error).__name__}: {error}{last}; "
        f"it comes from {registry().invariant_plugin(invariant.name)}"
    )


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """A context that restores torch's global generator, and computes with one thread.

    The tensors of a check are so small that a second thread would only wait for the first.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
