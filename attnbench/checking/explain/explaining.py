"""What is said under the failures of a subject: a script, the first difference, plugins' clues."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnbench.cases.case import Case
from attnbench.checking.explain.first_difference import first_difference
from attnbench.checking.explain.leading import lead_of
from attnbench.checking.explain.replay import replay
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.checking.plan import select_invariants
from attnbench.checking.reproduction.script import reproduce
from attnbench.errors import PluginError, UnknownNameError, headline
from attnbench.hookspecs import hookimpl
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


@hookimpl
def attnbench_explain(subject: Subject, failures: Sequence[Failure]) -> Iterator[Clue]:
    """The first difference of the first failure that shows one."""
    for failure in failures[:_TRIES]:
        clue = None
        # it may not fail in the same way again
        with contextlib.suppress(Exception, SystemExit), _limited():
            clue = first_difference(replay(subject, failure))
        if clue is not None:
            seen = "" if failure is failures[0] else f" (as {failure.invariant} shows)"
            yield replace(clue, text=clue.text + seen)
            return


class _TooLongError(BaseException):
    """An explanation took too long; no code of a subject expects it."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Leave the context after some seconds of computing, where a signal can end it."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "SIGVTALRM"
    ):
        yield
        return

    def end(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        yield
    except _TooLongError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def explained(subject: Subject, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of a subject, one failure with a script, the first one with the core's clues.

    Nothing calls a subject whose device is lost.
    """
    failing = _leading_first(outcomes)
    failures = [outcome.failure for outcome in failing if outcome.failure is not None]
    told = list(outcomes)
    if not failures or any(failure.device_lost for failure in failures):
        return told
    for outcome in failing[:_TRIES]:
        script = _script(subject, outcome)
        if script is not None:
            _put(told, outcome, script=script)
            break
    _put(told, failing[0], clues=tuple(attnbench_explain(subject, failures)))
    return told


def _leading_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a case that failed, the one that the report describes first."""
    failing = [o for o in outcomes if o.failure is not None and o.failure.case is not None]
    lead = lead_of(failing) if failing else None
    return sorted(failing, key=lambda outcome: outcome is not lead)


def _script(subject: Subject, outcome: Outcome) -> str | None:
    assert outcome.failure is not None
    with contextlib.suppress(UnknownNameError), seeded():
        (invariant,) = select_invariants([outcome.invariant])
        return reproduce(subject, invariant, Case.from_id(outcome.failure.case or ""))
    return None


def _put(outcomes: list[Outcome], old: Outcome, **changes: Any) -> None:
    """Change the failure of an outcome in a list of outcomes."""
    name = old.invariant, old.seed
    for place, outcome in enumerate(outcomes):
        if (outcome.invariant, outcome.seed) == name and outcome.failure is not None:
            outcomes[place] = replace(outcome, failure=replace(outcome.failure, **changes))


def explanation(target: Address, outcomes: Sequence[Outcome]) -> Iterator[list[Any]]:
    """The outcomes as :func:`explained` tells more of them, then the names of other explainers.

    It is called in a child process, once a subject.
    """
    (subject,) = resolve(target)
    yield explained(subject, outcomes)
    yield [plugin.name for plugin in registry().plugins if plugin.explain is not None]


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
