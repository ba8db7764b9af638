"""Times of a candidate and of torch's fused attention, in turns, by the judge's clock.

The clock is the kernel's account of what all threads and processes of the candidate computed; on a
shared core it scatters less than the time that passes, and nothing computes without being counted.

A block is four calls, ABBA or BAAB, each with fresh inputs and each checked. After the blocks, an
empty call is timed, behind a call of its own process. So what a candidate leaves in the caches of
the core costs others no time, unless its own time counts. The empty call's time, of messages and of
copying the output, is taken off all others. A block's value is half the log of the ratio of
products; the ratio is the median over blocks, with an interval of blocks drawn with replacement.
Where the ratio of the total times is less, beyond its interval, it takes the place of the median:
rare calls that take long count.
Where fused attention is faster in the candidate's process than in its own, beyond the interval,
the ratio is to that: a faster way of answering requests is no gain.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from attnbench import Case
from attnbench_judge.decision import RefusedError, Row
from attnbench_judge.fresh_calls import Caller
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.confined import Confined
from attnbench_judge.process.entry import Answer

FUSED, EMPTY, PRODUCT = range(3)  # callees of the honest process
HONEST = [
    (str(Path(__file__).with_name("process") / "honest.py"), name)
    for name in ("fused", "empty", "product")
]
"""These callees; the first is the second of a candidate's process, too, and has the same desk."""
_INSIDE = 1
_LEAST, _MOST = 12, 200
_WHOLE = 1 / 6
"""How often all rows of a timed call are compared, so that nobody knows where."""
_SIDE, _PRODUCTS = 768, 4
_RESAMPLES = 400
T = TypeVar("T")
_REASONS = {
    "too_short": "it takes no longer than the judge's messages; choose a greater length",
    "waits": "it waits for longer than it computes",
}
_IMPOSSIBLE = 2.0
"""Times faster than the machine's matrix product that is taken for impossible."""


class _Table:
    """The times of all calls of a case, by who was called."""

    def __init__(self, caller: Caller, honest: Confined, stream: Stream) -> None:
        self.caller, self.honest, self.stream = caller, honest, stream
        self.theirs: list[list[float]] = []
        self.idle: tuple[list[float], list[float]] = [], []
        self.fused: list[list[float]] = []
        self.empty: list[float] = []
        self.inside: list[tuple[float, float]] = []

    def candidate(self, *, whole: bool = False) -> float:
        self.stream.draw()
        whole = whole or self.caller.chance.random() < _WHOLE
        answer = self.caller.call(self.stream, whole=whole)
        if answer.raised is not None:
            name, text = answer.raised
            raise RefusedError("refused_when_timed", f"{name}: {text} at {self.stream.case.id}")
        self.idle[0].append(answer.idle_s)
        return answer.seconds

    def known(self, callee: int) -> float:
        answer = self._ours(self.honest, callee)
        assert answer.raised is None, answer.raised
        self.idle[1].append(answer.idle_s)
        return answer.seconds

    def _ours(self, cell: Confined, callee: int) -> Answer:
        """The answer of one of the honest functions, in either process."""
        self.stream.draw()
        given = {**self.stream.keywords, "turned": self.stream.turned}
        return cell.call(self.stream.tensors(), given, callee=callee)

    def block(self, chance: random.Random) -> None:
        first = chance.random() < 0.5
        theirs, fused = [], []
        for mine in (first, not first, not first, first):
            if mine:
                theirs.append(self.candidate())
            else:
                fused.append(self.known(FUSED))
        self.theirs.append(theirs)
        self.fused.append(fused)

    def fused_inside(self) -> float:
        """The time of fused attention in the candidate's process, for what its desk saves.

        What is called may do anything there: only fused attention in the other process follows it.
        """
        answer = self._ours(self.caller.cell, _INSIDE)
        if answer.raised is not None:
            raise RefusedError("broke_protocol", f"torch's own function raised {answer.raised[0]}")
        return answer.seconds


def timed(
    caller: Caller,
    honest: Confined,
    stream: Stream,
    *,
    budget_s: float,
    chance: random.Random,
) -> Row:
    """Measure one case.

    Args:
        caller: calls the candidate.
        honest: process with torch's fused attention, the empty call and the product.
        stream: inputs of the case.
        budget_s: seconds to spend, after the least number of blocks.
        chance: draws the order within blocks.

    Raises:
        RefusedError: an answer is wrong or impossibly fast.
    """
    table = _Table(caller, honest, stream)
    for _ in range(2):
        table.candidate(whole=True)
        for callee in (FUSED, EMPTY):
            table.known(callee)
    deadline = time.monotonic() + budget_s
    while len(table.theirs) < _MOST and (len(table.theirs) < _LEAST or time.monotonic() < deadline):
        table.block(chance)
    for _ in range(_LEAST):  # between blocks they would leave the candidate colder caches
        table.known(FUSED)
        table.empty.append(table.known(EMPTY))
    for _ in range(3 * _LEAST):  # a busy machine would hide what the desk saves
        table.inside.append((table.fused_inside(), table.known(FUSED)))
    table.candidate(whole=True)
    return _row(table, chance)


def _row(table: _Table, chance: random.Random) -> Row:
    case = table.stream.case
    overhead = statistics.median(table.empty)
    least = overhead / 4

    def net(seconds: float) -> float:
        return max(seconds - overhead, least)

    pairs = [
        ([net(s) for s in theirs], [net(s) for s in known])
        for theirs, known in zip(table.theirs, table.fused, strict=True)
    ]
    logs = [
        sum(map(math.log, known)) / 2 - sum(map(math.log, theirs)) / 2 for theirs, known in pairs
    ]
    found = interval(logs, statistics.median, chance)
    middle: Callable[[list[float]], float] = statistics.median
    totals = [(sum(theirs), sum(known)) for theirs, known in pairs]
    of_totals = interval(totals, total_ratio, chance)
    if of_totals[2] < found[1]:
        found, middle = of_totals, statistics.fmean
    savings = [math.log(net(inside) / net(outside)) for inside, outside in table.inside]
    _, saved, most = interval(savings, statistics.median, chance)
    faster = saved if most < 0.0 else 0.0  # calls there are, whatever is called
    low, log, high = (one + faster for one in found)
    mine, fused = (middle([s for pair in pairs for s in pair[i]]) for i in (0, 1))
    bound = _bound_s(case, table.honest)
    if bound > 2 * overhead and mine < bound / _IMPOSSIBLE:
        raise RefusedError(
            "too_fast", f"{mine:.2e} s, and its products alone take {bound:.2e} s, at {case.id}"
        )
    theirs, known = map(statistics.fmean, table.idle)
    wait = max(0.0, theirs - known)
    status = "waits" if wait > max(mine, overhead) else "ok"
    if status == "ok" and min(mine, fused) <= overhead:
        status = "too_short"
    return Row(
        case.id,
        status,
        mine,
        wait,
        fused,
        overhead,
        math.exp(log),
        math.exp(low),
        math.exp(high),
        len(logs),
        _REASONS.get(status, ""),
    )


def total_ratio(totals: Sequence[tuple[float, float]]) -> float:
    """Log of the ratio of total times, second over first, of two times of each block."""
    return math.log(sum(pair[1] for pair in totals) / sum(pair[0] for pair in totals))


def interval(
    blocks: Sequence[T], value: Callable[[Sequence[T]], float], chance: random.Random
) -> tuple[float, float, float]:
    """A value of blocks between the ends of its 95 % interval, by blocks drawn with replacement."""
    drawn = sorted(value(chance.choices(blocks, k=len(blocks))) for _ in range(_RESAMPLES))
    return drawn[_RESAMPLES // 40], value(blocks), drawn[-1 - _RESAMPLES // 40]


def _bound_s(case: Case, honest: Confined) -> float:
    """The seconds that the products of attention take at the rate of a large one."""
    rates = [_rate(honest, dtype) for dtype in {case.dtype, "float32"}]
    pairs = math.prod(case.lead) * case.q_len * case.kv_len
    share = 0.5 if case.mask == "causal" else 1.0
    if case.mask not in ("none", "causal"):
        share = 0.0  # how much of it a mask hides is not known
    return share * pairs * 2 * (case.query_size + case.value_size) / max(rates)


def _rate(honest: Confined, dtype: str) -> float:
    """Operations a second of a large matrix product, by the clock that times candidates."""
    sides = [torch.ones(_SIDE, _SIDE, dtype=getattr(torch, dtype)) for _ in range(2)]
    found = [honest.call([*sides, sides[1]], {}, callee=PRODUCT) for _ in range(_PRODUCTS)]
    return 2 * _SIDE**3 / min(answer.seconds for answer in found)
