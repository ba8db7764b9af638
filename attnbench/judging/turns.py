"""Times of a candidate and of torch's fused attention, in turns, by the judge's clock.

The clock is the kernel's account of what all threads and processes of the candidate computed; on a
shared core it scatters less than the time that passes, and nothing computes without being counted.

A block is four calls, ABBA or BAAB, each with fresh inputs and each checked. Then the textbook form
and an empty call are timed. The empty call's time, of messages and of copying the output,
is taken off all others. A block's value is half the log of the ratio of products; the ratio is the
median over blocks, with the interval of order statistics.
"""

from __future__ import annotations

import math
import random
import statistics
import time

import torch

from attnbench.cases.case import Case
from attnbench.judging.confined import Confined
from attnbench.judging.decision import RefusedError, Row
from attnbench.judging.fresh_calls import Caller, Stream

FUSED, TEXTBOOK, EMPTY, PRODUCT = range(4)  # callees of the honest process
_LEAST, _MOST = 12, 200
_SIDE, _PRODUCTS = 768, 4
_IMPOSSIBLE = 2.0
"""Times faster than the machine's matrix product that is taken for impossible."""


class _Table:
    """The times of all calls of a case, by who was called."""

    def __init__(self, caller: Caller, honest: Confined, stream: Stream) -> None:
        self.caller, self.honest, self.stream = caller, honest, stream
        self.theirs: list[list[float]] = []
        self.fused: list[list[float]] = []
        self.textbook: list[float] = []
        self.empty: list[float] = []

    def candidate(self, *, whole: bool = False) -> float:
        self.stream.draw()
        answer = self.caller.call(self.stream, whole=whole)
        if answer.raised is not None:
            name, text = answer.raised
            raise RefusedError("refused_when_timed", f"{name}: {text} at {self.stream.case.id}")
        return answer.seconds

    def known(self, callee: int) -> float:
        self.stream.draw()
        given = {**self.stream.keywords, "turned": self.stream.turned}
        answer = self.honest.call(self.stream.tensors(), given, callee=callee)
        assert answer.raised is None, answer.raised
        return answer.seconds

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

    def beside(self) -> None:
        """Time the others, each after a call of the candidate, so that all find the same caches."""
        self.candidate()
        self.empty.append(self.known(EMPTY))
        self.candidate()
        self.textbook.append(self.known(TEXTBOOK))


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
        honest: process with torch's fused attention, the textbook form and the empty call.
        stream: inputs of the case.
        budget_s: seconds to spend, after the least number of blocks.
        chance: draws the order within blocks.

    Raises:
        RefusedError: an answer is wrong or impossibly fast.
    """
    table = _Table(caller, honest, stream)
    for _ in range(2):
        table.candidate(whole=True)
        for callee in (FUSED, TEXTBOOK, EMPTY):
            table.known(callee)
    deadline = time.monotonic() + budget_s
    while len(table.theirs) < _MOST and (len(table.theirs) < _LEAST or time.monotonic() < deadline):
        table.block(chance)
    for _ in range(_LEAST):
        table.beside()
    table.candidate(whole=True)
    return _row(table)


def _row(table: _Table) -> Row:
    case = table.stream.case
    overhead = statistics.median(table.empty)
    least = overhead / 4

    def net(seconds: float) -> float:
        return max(seconds - overhead, least)

    mine = statistics.median(net(s) for block in table.theirs for s in block)
    fused = statistics.median(net(s) for block in table.fused for s in block)
    textbook = statistics.median(map(net, table.textbook))
    logs = sorted(
        sum(math.log(net(s)) for s in theirs) / -2 + sum(math.log(net(s)) for s in known) / 2
        for theirs, known in zip(table.theirs, table.fused, strict=True)
    )
    bound = _bound_s(case, table.honest)
    if bound > 2 * overhead and mine < bound / _IMPOSSIBLE:
        raise RefusedError(
            "too_fast", f"{mine:.2e} s, and its products alone take {bound:.2e} s, at {case.id}"
        )
    low, high = interval(logs)
    return Row(
        case.id,
        "too_short" if min(mine, fused) <= overhead else "ok",
        mine,
        fused,
        textbook,
        overhead,
        math.exp(statistics.median(logs)),
        math.exp(low),
        math.exp(high),
        textbook / mine,
        bound / mine,
        len(logs),
    )


def interval(logs: list[float]) -> tuple[float, float]:
    """The 95 % interval of a median, by order statistics (binomial with probability 1/2)."""
    count, tail, rank = len(logs), 0.0, 0
    while rank < count // 2:
        tail += math.comb(count, rank) / 2**count
        if tail > 0.025:
            break
        rank += 1
    place = max(rank - 1, 0)
    return logs[place], logs[count - 1 - place]


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
