"""The state of one run, and its executions over an arbitrary strategy."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import SkipTest

from hypothesis import Phase, target
from hypothesis.database import ExampleDatabase
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from attnbench.cases.case import Case
from attnbench.cases.parts import Part, Space
from attnbench.checking import hypothesis_engine
from attnbench.checking.outcomes import CONTRACT
from attnbench.checking.profiles import Profile, nearest_misses
from attnbench.errors import InvariantViolation, RefusalError
from attnbench.oracle.references import NoReferenceError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

__all__ = ["IllegalCaseError", "Run", "UnjudgedError"]

_SHRINKING = 300
"""Most cases at which a check runs to find a smaller one that fails."""


class IllegalCaseError(Exception):
    """A strategy drew something that is not a legal case of the subject."""


class UnjudgedError(SkipTest):
    """There is no reference for the subject. A ``SkipTest``, since Hypothesis passes these on."""


class Run:
    """The state of one run: the cases seen, and the failure, if any."""

    def __init__(self, subject: Subject, invariant: Invariant, profile: Profile) -> None:
        self.subject, self.invariant, self.profile = subject, invariant, profile
        self.seen = Counter[str]()
        self.quota = profile.quota
        self.left_out = 0
        self.refusals, self.rejections = Counter[str](), Counter[str]()
        self.failing: Case | None = None
        self.error: BaseException | None = None
        self.shrunk = False
        self.note = ""
        self._nothing: str | None = None
        self._key = f"attnbench {subject.name} {invariant.name}"
        self._left = _SHRINKING
        self._known: dict[Case, BaseException | None] = {}
        self._counted: set[Case] = set()

    @property
    def wanted(self) -> int:
        """How many cases to draw: more than usual if only few were scheduled."""
        lacking = 2 * self.quota - self.seen["scheduled"]
        return hypothesis_engine.drawn_count(max(self.profile.drawn, lacking))

    def verdict(self, case: Case) -> BaseException | None:
        """The exception that the check raises at a case, cached; a rejection is one as well."""
        if case not in self._known:
            self._known[case] = self._raised(case)
        return self._known[case]

    def _raised(self, case: Case) -> BaseException | None:
        reason = self.subject.unsupported(case)
        if reason is not None:
            self.refusals[reason] += 1
            return UnsatisfiedAssumption(reason)
        try:
            self.invariant.check(self.subject, case)
        except RefusalError as refusal:
            self.refusals[str(refusal)] += 1
            return UnsatisfiedAssumption(str(refusal))
        except NoReferenceError as error:
            raise UnjudgedError(str(error)) from None
        except SystemExit as error:  # a subject must not end the run
            return InvariantViolation(f"raised on a legal input: SystemExit: {error}")
        except Exception as error:
            return error
        return None

    def fails(self, case: Case, kind: str) -> bool:
        """Whether the check fails at a case; the case is counted if it gave a verdict."""
        if self.error is not None or case in self._counted:
            return case == self.failing
        error = self.verdict(case)
        if kind != "stored":
            self._counted.add(case)
        if isinstance(error, UnsatisfiedAssumption):
            if kind == "scheduled":
                self.rejections[str(error)] += 1
            return False
        self.seen[kind] += 1
        if error is not None:
            self.failing, self.error = case, error
        return error is not None

    @contextlib.contextmanager
    def aimed(self) -> Iterator[None]:
        """Let Hypothesis prefer, in thorough, examples whose errors use most of their budgets."""
        with nearest_misses() as shares:
            yield
        if shares and self.profile.name == "thorough":
            target(max(shares), label="largest error relative to its budget")

    def fails_again(self, case: Case) -> bool:
        """Whether a case fails like the first failure; gives up after some number of cases."""
        if case not in self._known:
            if self._left <= 0:
                return False
            self._left -= 1
        return type(self.verdict(case)) is type(self.error)

    def finished(self, part: Part, raw: Case | None) -> Case | None:
        """The case that a space makes of a raw one, or ``None``."""
        case = None if raw is None else part.finished(raw)
        if raw is None or case is None:
            return None
        listed = not isinstance(part, Space)  # by the invariant, case by case
        if listed or (case != raw and self.subject.legal(raw) == raw):
            self.hold_legal(case)
        return case

    def hold_legal(self, case: Any) -> None:
        """Raise if the invariant's strategy gave something that is not a legal case."""
        name = self.invariant.name
        if not isinstance(case, Case):
            raise IllegalCaseError(
                f"the cases of {name} must be attnbench.Case, but its strategy drew {case!r}"
            )
        if case.mistake is not None:
            raise IllegalCaseError(f"the strategy of {name} drew {case.id}: its {case.mistake}")
        legal = self.subject.legal(case)
        # if a spec's sizes() is not idempotent, there is no nearest legal case
        if legal != case and self.subject.legal(legal) == legal:
            raise IllegalCaseError(
                f"the strategy of {name} drew {case.id}, which is not legal for "
                f"{self.subject.name}; the nearest legal case is {legal.id}. "
                "End the strategy with .map(subject.legal), or filter such cases out."
            )

    @property
    def refused(self) -> str:
        """The most frequent reason of the subject's refusals."""
        return "; ".join(reason for reason, _ in self.refusals.most_common(3))

    def ruled_out(self) -> tuple[str, str] | None:
        """Status and reason if no case could run; this is no verdict on the contract."""
        told = f"it takes none of its cases: {self.refused}" if self.refusals else self._nothing
        if self.seen or told is None:
            return None
        return "inconclusive" if self.invariant.name == CONTRACT else "skipped", told

    def explore(
        self,
        strategy: SearchStrategy[Case],
        device: str,
        dtypes: tuple[str, ...],
        seed: int | None,
        kept: ExampleDatabase | None,
        *,
        shrink: bool,
    ) -> None:
        """Run the check on stored failures, then on drawn cases.

        The strategy is arbitrary, so Hypothesis draws and shrinks on its own.
        """
        others: dict[str, None] = {}

        def fail(case: Case) -> bool:
            self.hold_legal(case)
            if case.dtype not in dtypes:
                others[case.dtype] = None
                raise UnsatisfiedAssumption
            case = case.replace(device=device)
            if self.error is not None:
                return self.fails_again(case)
            with self.aimed():
                failed = self.fails(case, "drawn")
            if isinstance(self.verdict(case), UnsatisfiedAssumption):
                raise UnsatisfiedAssumption
            return failed

        shrinking = (Phase.shrink,) if shrink else ()
        stages = ((Phase.reuse, *shrinking), (Phase.generate, Phase.target, *shrinking))
        for stage in stages:
            smallest = hypothesis_engine.search(
                strategy,
                fail,
                phases=hypothesis_engine.phases(*stage),
                examples=self.wanted,
                seed=f"{self.invariant.name} {seed}",
                kept=kept,
                key=self._key,
            )
            if smallest is not None:
                self.shrunk = shrink and self._left > 0
                self.failing = smallest.replace(device=device)
                self.error = self.verdict(self.failing)
                return
        if others:
            drawn, asked = ", ".join(sorted(others)), ", ".join(dtypes)
            self._nothing = f"its strategy draws {drawn} only, none of {asked}"
