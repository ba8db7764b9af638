"""Whether what failed holds with a change, while ordinary calls stay as they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Subject
from attnbench.errors import RefusalError, UsageError
from attnbench.testing import replay, run_invariants
from attnbench_mend.running import TooLong, limited

ORDINARY = (
    Case((1,), 1, 1, 8, 8, 8),
    Case((1, 2), 4, 4, 8, 8, 8),
    Case((3,), 5, 5, 8, 8, 8),
    Case((3,), 12, 12, 8, 8, 8),
    Case((3, 2), 3, 6, 8, 8, 8),
    Case((3,), 4, 4, 8, 8, 8, mask="padding"),
    Case((3,), 4, 4, 8, 8, 8, mask="causal"),
)
"""Calls that a change leaves as they are where nothing failed, the smallest first.

Three items, as there are two heads or four: where both are as many, one may stand for the other.
"""

_TRIAL_S = 3.0
"""Most seconds of computing of one check, as changed code may loop."""

_NEAR = 2e-6
"""How far outputs may part, as a share of the largest."""

_MOST_FAILURES = 3
"""Most failures at whose cases each change is tried; the properties of all are checked at last."""

_WHOLE = (
    "keeps_the_contract",
    "agrees_with_float64",
    "items_are_independent",
    "outputs_depend_on_their_token",
)
"""What has to hold in a whole quick check, besides what failed."""

_FORMULAS = ("agrees_with_scalar_reference", "layer_agrees_with_reference")
"""What determines each output, so that no ordinary call has to."""


class Trials:
    """Calls of a subject whose code may run with changes.

    Args:
        subject: the subject.
        failures: its failures.
    """

    def __init__(self, subject: Subject, failures: Sequence[Any]) -> None:
        self._subject = subject
        self._names = [failure.invariant for failure in failures]
        self._failures = self._quickest(failures)
        right = [case for case in ORDINARY if not self._is_wrong(case)]
        outputs = ((case, self._output(case)) for case in right)
        self._kept = [(case, output) for case, output in outputs if output is not None]
        self._kept = [(case, output) for case, output in self._kept if self._is_kept(case, output)]

    @property
    def can_be_held(self) -> bool:
        """Whether there is an ordinary call that is right, and what failed fails again."""
        return bool(self._kept and self._failures)

    def approve(self) -> bool:
        """Whether what failed holds now, and ordinary calls are as before."""
        if not all(self._is_kept(case, output) for case, output in self._kept):
            return False
        told: list[bool | None] = []
        for failure in self._failures:
            told.append(self._fails_again(failure))
            if told[-1] is True:
                return False
        return False in told

    def approve_whole(self) -> bool:
        """Whether the properties that failed hold in a whole quick check."""
        names = dict.fromkeys((*_WHOLE, *_FORMULAS, *self._names))
        try:
            found = run_invariants(replace(self._subject.spec), list(names), profile="quick")
            outcomes = list(found)
        except UsageError:
            return False
        passed = {outcome.invariant for outcome in outcomes if outcome.status == "passed"}
        holds = all(outcome.status in ("passed", "skipped") for outcome in outcomes)
        return holds and (self._keeps_a_sum or not passed.isdisjoint(_FORMULAS))

    @property
    def _keeps_a_sum(self) -> bool:
        """Whether an ordinary call that is right has several keys: a single key says little."""
        return any(case.kv_len > 1 for case, _ in self._kept)

    def failing_again(self) -> None:
        """Make the calls that failed."""
        for failure in self._failures:
            self._fails_again(failure)

    def ordinary_again(self) -> None:
        """Make ordinary calls."""
        for case, _ in self._kept:
            self._output(case)

    def _quickest(self, failures: Sequence[Any]) -> list[Any]:
        """The failures that show again in the least time, the quickest first."""
        found = []
        for place, failure in enumerate(failures):
            started = time.monotonic()
            if self._fails_again(failure) is True:
                found.append((time.monotonic() - started, place, failure))
        return [failure for *_, failure in sorted(found)[:_MOST_FAILURES]]

    def _fresh(self) -> Subject:
        """The subject as one of which nothing is known: checks keep answers of those they know."""
        subject: Subject = replace(self._subject, spec=replace(self._subject.spec))
        return subject

    def _fails_again(self, failure: Any) -> bool | None:
        """Whether a failure shows again; ``None`` where a call raises, which tells nothing."""
        try:
            with limited(_TRIAL_S):
                replay(self._fresh(), failure)
        except RefusalError:
            return None
        except UsageError:
            return False
        except (Exception, SystemExit, TooLong):
            return None
        return True

    def _is_wrong(self, case: Case) -> bool:
        """Whether what failed fails at an ordinary call as well, and not only in calls after it."""
        legal = self._subject.legal(case)
        plain = [failure for failure in self._failures if not failure.program]
        return any(self._fails_again(replace(one, case=legal.id)) is True for one in plain)

    def _output(self, case: Case) -> Tensor | None:
        """The output of a call; ``None`` if the subject takes no such call, or it raises."""
        subject = self._subject
        try:
            with limited(_TRIAL_S), torch.no_grad():
                legal = subject.legal(case)
                if subject.unsupported(legal) is None:
                    return subject.output(*subject.build(legal)).double()
        except (Exception, SystemExit, TooLong):
            return None
        return None

    def _is_kept(self, case: Case, before: Tensor) -> bool:
        """Whether the output of a call is the same as before but for rounding."""
        now = self._output(case)
        if now is None or now.shape != before.shape:
            return False
        margin = _NEAR * float(before.nan_to_num().abs().amax()) if before.numel() else 0.0
        return torch.allclose(now, before, rtol=0.0, atol=margin, equal_nan=True)
