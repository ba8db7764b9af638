"""What is said under the failures of a subject: a script, and the first difference."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnbench.cases.case import Case
from attnbench.checking.explain.first_difference import first_difference
from attnbench.checking.explain.replay import Comparison, replayed
from attnbench.checking.explain.script import script_of
from attnbench.checking.outcomes import Explanation, Outcome, lead_of
from attnbench.checking.plan import select_invariants
from attnbench.specs import Clue
from attnbench.subject.devices import seeded
from attnbench.subject.subject import Subject

_SECONDS = 2.0
"""No failure is explained for longer."""

_SCRIPTS = 3
"""Most failures of a subject that are tried for a script, which takes seconds to verify."""


class _TooLongError(BaseException):
    """An explanation took too long; no code of a subject expects it."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Leave the context after some seconds of computing, where a signal can end it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "SIGVTALRM"
    ):
        yield
        return

    def end(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 0.01))
    try:
        yield
    except _TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def explanations(subject: Subject, outcomes: Sequence[Outcome]) -> list[Explanation]:
    """The script of a failure, and the first difference of the first one.

    Nothing calls a subject whose device is lost.
    """
    failing, found = leading_first(outcomes), list[Explanation]()
    if any(o.failure is not None and o.failure.device_lost for o in failing):
        return found
    clue, again, until = None, list[tuple[Outcome, Comparison]](), time.process_time() + _SECONDS
    for outcome in failing:
        left = until - time.process_time()
        if left < 0 or (clue and len(again) >= _SCRIPTS):
            break
        # it may not fail in the same way again
        with contextlib.suppress(Exception, SystemExit), _limited(left):
            (invariant,) = select_invariants([outcome.invariant])
            comparison = replayed(subject, invariant, case_of(outcome))
            again.append((outcome, comparison))
            clue = clue or _with_origin(first_difference(comparison), outcome, failing[0])
    if clue:
        found.append(Explanation(failing[0].invariant, clues=(clue,)))
    for outcome, comparison in again[:_SCRIPTS]:
        title = f"{outcome.invariant} on {subject.name}, case {outcome.counterexample}"
        with contextlib.suppress(Exception, SystemExit), seeded():
            script = script_of(subject, title, case_of(outcome), comparison)
            if script:
                return [*found, Explanation(outcome.invariant, script)]
    return found


def case_of(outcome: Outcome) -> Case:
    """The case at which a property failed."""
    return Case.from_id(outcome.counterexample or "")


def _with_origin(clue: Clue | None, shown: Outcome, lead: Outcome) -> Clue | None:
    """A clue, with the name of the failure that shows it if that is another one."""
    if clue is None or shown is lead:
        return clue
    return replace(clue, text=f"{clue.text} (as {shown.invariant} shows)")


def leading_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a case that failed, the one that the report describes first."""
    failing = [o for o in outcomes if o.failure is not None and o.failure.case is not None]
    lead = lead_of(failing) if failing else None
    return sorted(failing, key=lambda outcome: outcome is not lead)
