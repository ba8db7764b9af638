"""The trial of one candidate: calls with inputs nobody could know, the invariants, and times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnbench.benchmark.bench_case import BenchCase
from attnbench.cases.case import Case
from attnbench.checking.api import outcomes_of
from attnbench.checking.outcomes import Outcome
from attnbench.judging.confined import Confined
from attnbench.judging.decision import Judgement
from attnbench.judging.fresh_calls import Caller, Stream, keywords_of_case
from attnbench.judging.proxy import Proxy, style_of, subject_of
from attnbench.judging.refusals import RefusedError
from attnbench.judging.turns import Row, timed

if TYPE_CHECKING:
    from attnbench.judging.court import Court

__all__ = ["Trial"]

_SHAPES = (  # lead, L, S, E, mask
    ((2, 3), 5, 7, 8, "none"),
    ((1, 2), 64, 64, 16, "none"),
    ((1, 2), 64, 64, 16, "causal"),
    ((2, 2), 33, 65, 32, "boolean"),
    ((1, 4), 1, 130, 32, "none"),
    ((1, 1), 257, 96, 16, "none"),
    ((1, 2), 128, 128, 64, "key_padding"),
)
_CALLS = 120
_REPEATED = 0.15
_FAILURES = 5
"""After so many no further invariant runs; 'attnbench check' runs all."""


class Trial:
    """The judging of one candidate."""

    def __init__(self, court: Court, target: str, place: tuple[str, str], seed: int) -> None:
        self.court, self.target, self.place, self.seed = court, target, place, seed
        self.outcomes: list[Outcome] = []
        self.rows: list[Row] = []
        self.cell: Confined | None = None
        self.caller: Caller | None = None

    def cell_of(self) -> Confined:
        """A new process of the candidate."""
        paths = () if self.place[0].endswith(".py") else (str(Path.cwd()),)
        cell = Confined(self.court.nursery, [self.place], self.court.limits, paths)
        try:
            cell.load()
        except BaseException:
            cell.close()
            raise
        return cell

    def close(self) -> None:
        """End the candidate's process."""
        if self.cell is not None:
            self.cell.close()

    def run(
        self,
        style: str | None,
        conventions: Mapping[str, Any],
        profile: str,
        invariants: Sequence[Any],
    ) -> tuple[str, RefusedError | None]:
        """Calls, invariants, times; the verdict, and what it was refused for."""
        try:
            self.cell = self.cell_of()
            described = self.cell.callees[0]
            style = style_of(described, style)
            proxy = Proxy(self.cell, style, described)
            subject = subject_of(proxy, self.target, conventions)
            # drawn only now that the candidate is loaded
            chance = random.Random(self.seed)  # noqa: S311  # to be repeated by seed
            generator = torch.Generator().manual_seed(self.seed)
            self.caller = Caller(self.cell, self.cell_of, style, proxy.names, chance)
            wrong = self._calls(proxy, chance, generator)
            self._check(subject, profile, invariants)
            if self.cell.refused is not None:
                raise self.cell.refused
            if wrong is not None:
                raise wrong
            if any(o.status not in ("passed", "skipped") for o in self.outcomes):
                return "failed", None
            self.caller.timing = True
            for case in self.court.cases:
                self.rows.append(self._timed(case, proxy, chance, generator))
        except RefusedError as refused:
            return "refused", refused
        enough = any(o.status == "passed" for o in self.outcomes) and self.caller.tally.right
        return ("accepted" if enough else "inconclusive"), None

    def _calls(
        self, proxy: Proxy, chance: random.Random, generator: torch.Generator
    ) -> RefusedError | None:
        """Many calls of several shapes; returns a wrong answer that the invariants may explain."""
        assert self.caller is not None
        streams = list(self._streams(proxy, generator))
        for number in range(_CALLS):
            stream = chance.choice(streams)
            if not stream.drawn or chance.random() > _REPEATED:
                stream.draw()
            try:
                self.caller.call(stream, whole=number % 8 == 0)
            except RefusedError as refused:
                if refused.name != "wrong":
                    raise
                return refused
        return None

    def _streams(self, proxy: Proxy, generator: torch.Generator) -> Iterator[Stream]:
        for lead, q_len, kv_len, size, mask in _SHAPES:
            for dtype in ("float32", "bfloat16"):
                seed = int(torch.randint(2**31, (), generator=generator))
                case = Case(lead, q_len, kv_len, size, size, size, dtype, mask=mask, seed=seed)
                keywords = keywords_of_case(case, proxy.names, proxy.style)
                if keywords is None:
                    continue
                if "scale" in proxy.names and mask == "none":
                    keywords["scale"] = float(torch.rand((), generator=generator)) + 0.05
                yield Stream(case, keywords, proxy.style, generator)

    def _check(self, subject: Any, profile: str, invariants: Sequence[Any]) -> None:
        found = outcomes_of(
            subject,
            [one for one in invariants if "mechanism" in one.kinds],
            profile=profile,
            seed=self.seed % 2**31,
            evidence=False,
        )
        for outcome in found:
            self.outcomes.append(outcome)
            failed = sum(one.status not in ("passed", "skipped") for one in self.outcomes)
            if failed == _FAILURES or (self.cell is not None and self.cell.refused is not None):
                return

    def _timed(
        self, bench: BenchCase, proxy: Proxy, chance: random.Random, generator: torch.Generator
    ) -> Row:
        case = bench.case.replace(seed=int(torch.randint(2**31, (), generator=generator)))
        if case.query_size != case.key_size or len(case.lead) > 2:
            return Row(case.id, "unsupported", reason="it is not a case of q·k attention")
        keywords = keywords_of_case(case, proxy.names, proxy.style)
        if bench.kv_heads is not None and keywords is not None:
            grouped = "enable_gqa" in proxy.names
            keywords = {**keywords, "enable_gqa": True} if grouped else None
        if keywords is None:
            return Row(case.id, "unsupported", reason="it does not take what the case needs")
        assert self.caller is not None
        return timed(
            self.caller,
            self.court.honest(proxy.style),
            Stream(case, keywords, proxy.style, generator, bench.kv_heads),
            budget_s=self.court.budget_s,
            chance=chance,
        )

    def judgement(self, verdict: str, refused: RefusedError | None, seconds: float) -> Judgement:
        """All that was found."""
        tally = self.caller.tally if self.caller is not None else None
        return Judgement(
            self.target,
            verdict,
            None if refused is None else refused.name,
            "" if refused is None else str(refused),
            tuple(self.outcomes),
            tuple(self.rows),
            0 if tally is None else tally.calls,
            0 if tally is None else tally.right,
            () if self.cell is None else tuple(self.cell.held),
            {} if self.cell is None else self.cell.missing,
            self.seed,
            seconds,
        )
