"""A duel: two sides in pairs, until every row is decided, or the pairs or the time are spent.

Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.comparing.exchange import Exchange, Unmeasured
from attnbench.benchmark.comparing.verdict_of_pairs import LOOKS, MARGIN, Judged, judge
from attnbench.benchmark.machine.load import Load
from attnbench.benchmark.measuring.blocks import pair_value

__all__ = ["Duel", "Row"]

_FAILURES = 3
"""So often a row may give no value before it is left out."""


@dataclass
class Row:
    """A row of the table.

    Args:
        subject: its address, or both.
        case: at which.
        sides: what each side is to prepare.
        values: logs of B's time over A's, by pair.
        judged: what is to be said of it.
        reason: why it is not decided.
        refused: whether it could not be measured at all.
    """

    subject: str
    case: BenchCase
    sides: tuple[Mapping[str, Any], Mapping[str, Any]]
    values: dict[int, float] = field(default_factory=dict)
    judged: Judged | None = None
    reason: str = ""
    refused: bool = False
    failures: int = 0

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``same`` or ``ambiguous``."""
        return self.judged.verdict if self.judged else "ambiguous"

    @property
    def decided(self) -> bool:
        """Whether it needs no further pair."""
        return self.refused or self.verdict != "ambiguous"


@dataclass
class Duel:
    """The table, and how it is decided.

    Args:
        exchange: of the two sides.
        rows: of the table.
        margin: changes smaller than this share are the same.
        budget_s: seconds after which no further pair begins; the first begins in any case.
        looks: pairs at which is looked, and the error that each look may spend.
        decide: whether to look; else the pairs of the last look are taken for every row.
        step: told after each pair how many rows it had.
    """

    exchange: Exchange
    rows: Sequence[Row]
    margin: float = MARGIN
    budget_s: float = float("inf")
    looks: Mapping[int, float] = field(default_factory=lambda: dict(LOOKS))
    decide: bool = True
    step: Callable[[int], None] = lambda rows: None
    pairs: int = 0
    seconds: float = 0.0
    row_s: float = 0.0
    short: bool = False
    load: Mapping[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Take pairs and look, until there is no need or no time for more."""
        started, taken = time.monotonic(), 0
        load = Load(whole=True)
        longest = 0.0
        for number, (look, alpha) in enumerate(self.looks.items()):
            last = number == len(self.looks) - 1
            while self.pairs < look and self._open():
                begun = time.monotonic()
                if self.pairs and begun - started + longest > self.budget_s:
                    self.short = last = True
                    break
                taken += self._pair()
                longest = max(longest, time.monotonic() - begun)
                self.seconds = time.monotonic() - started
                self.row_s = self.seconds / max(taken, 1)
                self.load = load.read()
            if self.decide:
                self._look(alpha, last=last)
            if last or not self._open():
                break

    def _open(self) -> list[Row]:
        return [row for row in self.rows if not row.decided]

    def _pair(self) -> int:
        rows = self._open()
        first = self.pairs == 0
        for number, found in self.exchange.pair([row.sides for row in rows], check=first):
            row = rows[number]
            if not isinstance(found, Unmeasured):
                row.values[self.pairs] = pair_value(found)
                continue
            row.failures += 1
            row.reason = str(found)
            row.refused = first or row.failures >= _FAILURES
        self.pairs += 1
        self.step(len(rows))
        return len(rows)

    def _look(self, alpha: float, *, last: bool) -> None:
        rows = [row for row in self._open() if row.values]
        if not rows:
            return
        shared = sorted(set.intersection(*(set(row.values) for row in rows)))
        values = np.array([[row.values[n] for row in rows] for n in shared], dtype=float)
        if not len(values):
            return
        for row, found in zip(rows, judge(values, alpha=alpha, margin=self.margin), strict=True):
            row.judged = found
            if found.verdict == "ambiguous" and last:
                ended = "the time was up" if self.short else "undecided"
                row.reason = f"{ended} after {found.pairs} pair{'s' if found.pairs != 1 else ''}"
