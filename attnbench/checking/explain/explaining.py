"""What is said under the failures of a subject: a script, and what plugins say of them."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from attnbench.cases.case import Case
from attnbench.checking.explain.replay import Comparison, replayed
from attnbench.checking.outcomes import Outcome, lead_of
from attnbench.checking.plan import explaining_plugins
from attnbench.distributions import named_by_plugin
from attnbench.errors import PluginError, headline
from attnbench.registry.discovery import Plugin
from attnbench.specs import Clue
from attnbench.subject.devices import seeded
from attnbench.subject.subject import Subject

_SECONDS = 2.0
"""No subject is explained longer by what is built in."""

_SCRIPTS = 3
"""Most failures of a subject that are tried for a script, which takes seconds to verify."""


class _TooLongError(BaseException):
    """An explanation took too long; no code of a subject expects it."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Leave the context after some seconds of computing, where a signal can end it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGVTALRM"):
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


def with_clues(subject: Subject, failing: Sequence[Outcome], plugin: Plugin) -> Outcome:
    """The first of some failures with the clues of a plugin, or with a note if it raises."""
    lead, failures = failing[0], [o.failure for o in failing if o.failure is not None]
    assert plugin.explain is not None
    try:
        clues = [clue for clues in plugin.explain(subject, failures) for clue in clues]
        wrong = [clue for clue in clues if not isinstance(clue, Clue)]
        if wrong:
            raise PluginError(f"it gave {wrong[0]!r}, but should give attnbench.Clue")
    except (Exception, SystemExit) as error:
        return lead.noted(f"the explainer of plugin {plugin.name} raised {headline(error)}")
    return added(lead, clues=(*failures[0].clues, *clues))


def with_own_clues(subject: Subject, failing: Sequence[Outcome]) -> list[Outcome]:
    """Failures, one with a script, and the first one with the clues of built-in plugins."""
    until, told = time.process_time() + _SECONDS, [*failing]
    for number, comparison in islice(_again(subject, failing, until), _SCRIPTS):
        with contextlib.suppress(Exception, SystemExit), seeded():
            failure = failing[number].failure
            script = named_by_plugin("explaining.script_of")(subject, failure, comparison)
            told[number] = added(failing[number], script=script)
            if script:
                break
    for plugin in explaining_plugins(built_in=True):
        with _limited(until - time.process_time()):
            told[0] = with_clues(subject, told, plugin)
    return told


def _again(
    subject: Subject, failing: Sequence[Outcome], until: float
) -> Iterator[tuple[int, Comparison]]:
    """Those of some failures that fail again, by their numbers, for as long as there is time."""
    for number, outcome in enumerate(failing):
        comparison, left = None, until - time.process_time()
        if left < 0:
            return
        with contextlib.suppress(Exception, SystemExit), _limited(left):
            assert outcome.failure is not None
            comparison = replayed(subject, outcome.failure)
        if comparison is not None:
            yield number, comparison


def case_of(outcome: Outcome) -> Case:
    """The case at which a property failed."""
    return Case.from_id(outcome.counterexample or "")


def leading_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a case that failed, the one that the report describes first."""
    failing = [o for o in outcomes if o.failure is not None and o.failure.case is not None]
    lead = lead_of(failing) if failing else None
    return sorted(failing, key=lambda outcome: outcome is not lead)
