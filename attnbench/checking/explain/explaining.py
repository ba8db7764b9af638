"""What is said under the failures of a subject: a script, the first difference, plugins' clues."""

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
from attnbench.checking.explain.replay import Comparison, replayed
from attnbench.checking.explain.script import script_of
from attnbench.checking.outcomes import Outcome, lead_of
from attnbench.checking.plan import select_invariants
from attnbench.errors import PluginError, headline
from attnbench.registry.address import Address
from attnbench.registry.catalog import registry
from attnbench.specs import Clue
from attnbench.subject.devices import seeded
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

_SECONDS = 2.0
"""No failure is explained for longer."""

_TRIES = 3
"""Most failures of a subject that are run again for a script, or for the first difference."""


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


def explained(subject: Subject, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of a subject, one failure with a script, the first with the first difference.

    Nothing calls a subject whose device is lost.
    """
    failing, told = _leading_first(outcomes), list(outcomes)
    if any(o.failure is not None and o.failure.device_lost for o in failing):
        return told
    clue, script, until = None, None, time.process_time() + _SECONDS
    for outcome in failing[:_TRIES]:
        comparison = None
        # it may not fail in the same way again
        with contextlib.suppress(Exception, SystemExit), _limited(until - time.process_time()):
            comparison = _replayed(subject, outcome)
            if clue is None:
                clue = first_difference(comparison)
                seen = f" (as {outcome.invariant} shows)" * (outcome is not failing[0])
                _put(
                    told,
                    failing[0],
                    clues=() if clue is None else (replace(clue, text=clue.text + seen),),
                )
        if comparison is not None and script is None:
            title = f"{outcome.invariant} on {subject.name}, case {outcome.counterexample}"
            case = Case.from_id(outcome.counterexample or "")
            with contextlib.suppress(Exception, SystemExit), seeded():
                script = script_of(subject, title, case, comparison)
            _put(told, outcome, script=script)
    return told


def _replayed(subject: Subject, outcome: Outcome) -> Comparison:
    (invariant,) = select_invariants([outcome.invariant])
    return replayed(subject, invariant, Case.from_id(outcome.counterexample or ""))


def _leading_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a case that failed, the one that the report describes first."""
    failing = [o for o in outcomes if o.failure is not None and o.failure.case is not None]
    lead = lead_of(failing) if failing else None
    return sorted(failing, key=lambda outcome: outcome is not lead)


def _put(outcomes: list[Outcome], old: Outcome, **changes: Any) -> None:
    """Change the failure of an outcome in a list of outcomes."""
    name = old.invariant, old.seed
    for place, outcome in enumerate(outcomes):
        if (outcome.invariant, outcome.seed) == name and outcome.failure is not None:
            outcomes[place] = replace(outcome, failure=replace(outcome.failure, **changes))


def clues_of(target: Address, outcomes: Sequence[Outcome], plugin: str) -> list[Clue] | str:
    """The clues of the explainer of a plugin; or a line about it, if it raises.

    It is called in a child process, once a plugin and a subject.
    """
    (subject,) = resolve(target)
    failures = [o.failure for o in _leading_first(outcomes) if o.failure is not None]
    (found,) = (one for one in registry().plugins if one.name == plugin)
    assert found.explain is not None
    try:
        clues = [clue for clues in found.explain(subject, failures) for clue in clues]
        wrong = [clue for clue in clues if not isinstance(clue, Clue)]
        if wrong:
            raise PluginError(f"it gave {wrong[0]!r}, but should give attnbench.Clue")
    except (Exception, SystemExit) as error:
        return f"the explainer of plugin {plugin} raised {headline(error)}"
    return clues
