"""The trial of one candidate: calls with inputs nobody could know, the invariants, and times."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench import Case, Outcome
from attnbench.errors import StyleError
from attnbench.testing import run_invariants
from attnbench_judge.decision import Judgement, RefusedError, Row
from attnbench_judge.fresh_calls import Caller
from attnbench_judge.inputs.axes import AXES, FEW, MANY, NEVER_TRIED, axes_for, typical_rows
from attnbench_judge.inputs.covering import Coverage
from attnbench_judge.inputs.drawn_streams import Deck, keywords_of_case, stream_of
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.confined import Confined
from attnbench_judge.proxy import Proxy
from attnbench_judge.turns import FUSED, HONEST, timed

if TYPE_CHECKING:
    from attnbench_judge.court import Court

_CALLS_AFTER = 28
"""Calls after all that is timed."""
_MOST_S = 30.0
"""Seconds of calls of shapes that came before, after which no more are made at first."""
_KEPT, _BETWEEN, _REPEATED, _WHOLE = 24, 0.18, 0.15, 0.25
"""Shapes that come again; how often one does, with the same values, and is compared as a whole."""
_REFUSED = 6
MOST_FAILURES = 5
"""After so many no further invariant runs; 'attnbench check' runs all."""


class Trial:
    """The judging of one candidate.

    Args:
        court: where it is tried.
        target, place: its address, and its file or module with its attribute.
        style, conventions, profile, invariants, seed: as of :func:`attnbench_judge.court.judge`.
    """

    caller: Caller  # once it has begun
    proxy: Proxy

    def __init__(
        self,
        court: Court,
        target: str,
        place: tuple[str, str],
        *,
        style: str | None = None,
        conventions: Mapping[str, Any] | None = None,
        profile: str = "quick",
        invariants: Iterable[str] | None = None,
        seed: int | None = None,
    ) -> None:
        self.court, self.place, self.style = court, place, style
        self.conventions, self.profile, self.invariants = conventions or {}, profile, invariants
        self.found = Judgement(target, seed=secrets.randbits(62) if seed is None else seed)
        self.checks: Iterator[Outcome] = iter(())
        self.streams: list[Stream] = []
        self.cell: Confined | None = None
        self.secret = Secret(self.found.seed)
        self.chance, self.hidden = map(self.secret.chance, ("what is seen", "what is verified"))

    def cell_of(self) -> Confined:
        """A new process of the candidate."""
        source = Path(self.place[0])
        paths = (str(source.parent if source.suffix == ".py" else Path.cwd()),)
        callees = [self.place, HONEST[FUSED]]
        return Confined(callees, self.court.limits, paths, self.secret.chance("old outputs"))

    def run(self) -> Judgement:
        """Load it, call it and time it, end its process, and tell all that was found."""
        found, started = self.found, time.monotonic()
        try:
            found.verdict = self._verdict()
        except RefusedError as refused:
            found.verdict, found.refused = "refused", refused
        finally:
            if self.cell is not None:
                self.cell.close()
        found.untried = [*dict.fromkeys((*found.untried, *NEVER_TRIED))]
        found.seconds = time.monotonic() - started
        return found

    def _verdict(self) -> str:
        """Calls, with the invariants beside them, and times; a refusal is raised."""
        found = self.found
        self._begin()
        wrong = None
        try:
            self._first_calls()
        except RefusedError as refused:
            if refused.name != "wrong":  # which the invariants may explain
                raise
            wrong = refused
        self._check(calls=wrong is None)
        if reason := self.caller.cell.refused or wrong:
            raise reason
        if any(o.status not in ("passed", "skipped") for o in found.outcomes):
            return "failed"
        self.caller.timing = True
        found.rows += itertools.starmap(self._timed, self.court.cases)
        self.caller.timing = False
        self._calls_again(_CALLS_AFTER)
        enough = any(o.status == "passed" for o in found.outcomes) and found.calls_right
        return "accepted" if enough else "inconclusive"

    def _begin(self) -> None:
        """Load the candidate; one that the invariants cannot call ends its own trial only."""
        self.cell = self.cell_of()
        self.found.held, self.found.missing = self.cell.held, self.cell.missing
        described = self.cell.callees[0]
        if described.get("class"):
            name = described.get("name")
            raise RefusedError("not_loaded", f"{name} is a class; name a function or a module")
        try:
            self.proxy = Proxy(self.cell, self.style, self.conventions)
        except (StyleError, TypeError) as error:
            raise RefusedError("not_loaded", str(error)) from error
        self.caller = Caller(self.cell, self.cell_of, self.proxy.names, self.hidden, self.found)
        self.checks = run_invariants(
            self.proxy.subject.spec,
            self.invariants,
            profile=self.profile,
            seed=self.secret.number("invariants") % 2**31,
        )

    def _first_calls(self) -> None:
        """A call for each pair of levels, some that models make, and others of these shapes.

        Many errors before anything was right end it.
        """
        proxy, conventions = self.proxy, self.proxy.subject.conventions
        axes = axes_for(
            proxy.names,
            grouped=proxy.grouped,
            style=proxy.style,
            masks=conventions.masks,
            causal=conventions.causal,
            empty_rows=conventions.empty_rows,
        )
        self.found.untried += [
            name for axis in AXES for name in AXES[axis] if name not in axes[axis]
        ]
        coverage = Coverage(axes, (FEW.fits, MANY.fits), self.chance)
        again_s, deck = 0.0, Deck(self.chance)
        causal, refused = conventions.causal, 0
        rows = itertools.chain(coverage.rows(), typical_rows(axes, self.chance))
        for row in rows:
            stream = stream_of(row, proxy.style, causal, deck, self.secret)
            stream.draw()
            right = self.caller.call(stream, whole=True).raised is None
            coverage.add(row, right=right)
            refused += not right
            if refused == _REFUSED and not self.streams:
                break
            if right and len(self.streams) < _KEPT:
                self.streams.append(stream)
            if self.chance.random() < _BETWEEN and again_s < _MOST_S:
                again_s -= time.monotonic()
                self._calls_again(1)
                again_s += time.monotonic()
        self.found.untried += coverage.untried()

    def _calls_again(self, count: int) -> None:
        """Calls of shapes that came before, a few of them with the same values as before."""
        for _ in range(count if self.streams else 0):
            stream = self.chance.choice(self.streams)
            if self.chance.random() > _REPEATED:
                stream.draw()
            self.caller.call(stream, whole=self.hidden.random() < _WHOLE)

    def _check(self, *, calls: bool) -> None:
        """Run invariants, each followed by a call of the judge's own if there are to be calls."""
        for outcome in self.checks:
            self.found.outcomes.append(replace(outcome, subject=self.found.target))
            failed = sum(one.status not in ("passed", "skipped") for one in self.found.outcomes)
            if failed == MOST_FAILURES or self.caller.cell.refused is not None:
                return
            if calls and outcome.status == "passed":
                self._calls_again(1)

    def _timed(self, case: Case, kv_heads: int | None) -> Row:
        proxy, case = self.proxy, case.replace(seed=self.chance.getrandbits(31))
        keywords = keywords_of_case(case, proxy.names, proxy.style)
        if kv_heads is not None and keywords is not None:
            grouped = "enable_gqa" in proxy.names
            keywords = {**keywords, "enable_gqa": True} if grouped else None
        if keywords is None:
            return Row(case.id, "unsupported", reason="it does not take what the case needs")
        return timed(
            self.caller,
            self.court.honest(),
            Stream(case, keywords, proxy.style, self.secret, kv_heads),
            budget_s=self.court.budget_s,
            chance=self.chance,
        )
