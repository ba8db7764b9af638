"""What is said under the failures of a subject: a script, and the first difference."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnbench.cases.case import Case
from attnbench.checking.explain.first_difference import first_difference
from attnbench.checking.explain.replay import replayed
from attnbench.checking.explain.script import script_of
from attnbench.checking.outcomes import Outcome, lead_of
from attnbench.checking.plan import select_invariants
from attnbench.errors import PluginError, headline
from attnbench.registry.catalog import registry
from attnbench.specs import Clue
from attnbench.subject.devices import seeded
from attnbench.subject.subject import Subject

_SECONDS = 2.0
"""No subject's first difference is looked for longer."""

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


def added(outcome: Outcome, **fields: Any) -> Outcome:
    """An outcome with some fields of its failure set."""
    assert outcome.failure is not None
    return replace(outcome, failure=replace(outcome.failure, **fields))


def with_clues(subject: Subject, outcomes: Sequence[Outcome], explainer: str) -> Outcome:
    """The first of some failures with the clues of a plugin, or with a note if it raises."""
    lead, failures = outcomes[0], [o.failure for o in outcomes if o.failure is not None]
    (found,) = (one for one in registry().plugins if one.name == explainer)
    assert found.explain is not None
    try:
        clues = [clue for clues in found.explain(subject, failures) for clue in clues]
        wrong = [clue for clue in clues if not isinstance(clue, Clue)]
        if wrong:
            raise PluginError(f"it gave {wrong[0]!r}, but should give attnbench.Clue")
    except (Exception, SystemExit) as error:
        return lead.noted(f"the explainer of plugin {explainer} raised {headline(error)}")
    return added(lead, clues=(*failures[0].clues, *clues))


def explanations(
    subject: Subject, failing: Sequence[Outcome]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The script of a failure, and the first difference of the first one, as fields of these."""
    clue, script, tried = None, None, 0
    until = time.process_time() + _SECONDS
    for outcome in failing:
        left = until - time.process_time()
        if left < 0 or (clue and (script or tried == _SCRIPTS)):
            break
        comparison, case = None, case_of(outcome)
        # it may not fail in the same way again
        with contextlib.suppress(Exception, SystemExit), _limited(left):
            (invariant,) = select_invariants([outcome.invariant])
            comparison = replayed(subject, invariant, case)
            clue = clue or _with_origin(first_difference(comparison), outcome, failing[0])
        if comparison is None or script or tried == _SCRIPTS:
            continue
        tried += 1
        title = f"{outcome.invariant} on {subject.name}, case {case.id}"
        with contextlib.suppress(Exception, SystemExit), seeded():
            script = script_of(subject, title, case, comparison)
            yield outcome.invariant, {"script": script}
    if clue:
        yield failing[0].invariant, {"clues": (clue,)}


def _with_origin(clue: Clue | None, shown: Outcome, lead: Outcome) -> Clue | None:
    """A clue, with the name of the failure that shows it if that is another one."""
    if clue is None or shown is lead:
        return clue
    return replace(clue, text=f"{clue.text} (as {shown.invariant} shows)")


def case_of(outcome: Outcome) -> Case:
    """The case at which a property failed."""
    return Case.from_id(outcome.counterexample or "")


def leading_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a case that failed, the one that the report describes first."""
    failing = [o for o in outcomes if o.failure is not None and o.failure.case is not None]
    lead = lead_of(failing) if failing else None
    return sorted(failing, key=lambda outcome: outcome is not lead)
