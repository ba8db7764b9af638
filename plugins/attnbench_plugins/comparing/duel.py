"""A duel: measure two sides in pairs until every row is decided or the budget is used up.

The budget limits the pairs and the time. This module does not import torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnbench.timing import BenchCase, Load, pair_value
from attnbench_plugins.comparing.exchange import AnotherAnswer, Exchange, Unmeasured
from attnbench_plugins.comparing.verdict import LOOKS, MARGIN, Verdict, judge_pairs

_FAILURES = 3
"""A row is left out after failing in this many pairs."""


@dataclass
class Row:
    """A row of the table.

    Args:
        subject: address of the subject, or both addresses if the sides' differ.
        case: case at which it is measured.
        addresses: address of the subject on either side.
        values: log of B's time over A's, by pair.
        judged: latest verdict and interval.
        reason: why the row is not decided.
        refused: whether the row is left out because it cannot be measured.
        differs: whether that is because the sides give different answers.
        failures: number of pairs in which it gave no value.
    """

    subject: str
    case: BenchCase
    addresses: tuple[str, str]
    values: dict[int, float] = field(default_factory=dict)
    judged: Verdict = field(default_factory=Verdict)
    reason: str = ""
    refused: bool = False
    differs: bool = False
    failures: int = 0

    @property
    def verdict(self) -> str:
        """One of :data:`attnbench_plugins.comparing.verdict.VERDICTS`."""
        return self.judged.verdict

    @property
    def decided(self) -> bool:
        """Whether the row needs no further pair."""
        return self.refused or self.verdict != "ambiguous"


@dataclass
class Duel:
    """A table of rows, and the rules by which they are decided.

    Args:
        exchange: exchange that measures the two sides.
        rows: rows of the table.
        names: names of the two sides.
        notes: what is left out, in words.
        margin: changes smaller than this share count as small.
        budget_s: seconds; a pair that would probably end later is not begun, except the first.
        looks: numbers of pairs after which rows are judged, and the error each look may spend.
        pairs, seconds, load: how many pairs were taken, how long that took, and the load meanwhile.
        short: whether the budget ended it.
    """

    exchange: Exchange
    rows: Sequence[Row]
    names: Sequence[str] = "AB"
    notes: Sequence[str] = ()
    margin: float = MARGIN
    budget_s: float = float("inf")
    looks: Mapping[int, float] = field(default_factory=lambda: dict(LOOKS))
    pairs: int = 0
    seconds: float = 0.0
    load: Mapping[str, float] = field(default_factory=dict)
    short: bool = False

    def run(self) -> Iterator[int]:
        """Judge the rows until all are decided or the budget is used up.

        Yields:
            After each pair, the number of rows in it.
        """
        started, load, longest = time.monotonic(), Load(), 0.0
        for look, alpha in self.looks.items():
            while self.pairs < look and (rows := self._open_rows()):
                begin = time.monotonic()
                if self.pairs and begin - started + longest > self.budget_s:
                    self.short = True
                    break
                self._take_pair(rows)
                longest = max(longest, time.monotonic() - begin)
                self.seconds, self.load = time.monotonic() - started, load.read()
                yield len(rows)
            self._judge(alpha, last=self.short or look == max(self.looks))
            if self.short:
                return

    def _open_rows(self) -> list[Row]:
        return [row for row in self.rows if not row.decided]

    def _take_pair(self, rows: Sequence[Row]) -> None:
        for number, result in self.exchange.pair([(row.case, row.addresses) for row in rows]):
            row = rows[number]
            if not isinstance(result, Unmeasured):
                row.values[self.pairs] = pair_value(result)
                continue
            row.failures += 1
            row.reason = str(result)
            row.differs = isinstance(result, AnotherAnswer)
            row.refused = not self.pairs or row.differs or row.failures >= _FAILURES
        self.pairs += 1

    def _judge(self, alpha: float, *, last: bool) -> None:
        rows = [row for row in self._open_rows() if row.values]
        numbers = sorted(set.intersection(*(set(row.values) for row in rows))) if rows else []
        if not numbers:
            return
        values = np.array([[row.values[n] for row in rows] for n in numbers], dtype=float)
        verdicts = judge_pairs(values, alpha=alpha, margin=self.margin)
        for row, verdict in zip(rows, verdicts, strict=True):
            row.judged = verdict
            if verdict.verdict == "ambiguous" and last:
                outcome = "out of time" if self.short else "undecided"
                row.reason = f"{outcome} after {len(values)} pair{'s' if len(values) != 1 else ''}"
                if math.isinf(verdict.high):
                    row.reason += ", too few for an interval"
