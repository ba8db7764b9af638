"""State that the rows of a process share: timers of baselines, ceilings, times of a null call."""

from __future__ import annotations

import random
from collections import OrderedDict

import torch

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import Contract
from attnbench.benchmark.decoding import Step
from attnbench.benchmark.machine.load import Load
from attnbench.benchmark.machine.sentinel import Ceilings, ceilings
from attnbench.benchmark.measuring.measured_calls import (
    Call,
    compulsory_bytes,
    measured_call,
    null_call,
)
from attnbench.benchmark.records.record import BASELINES, baseline_of
from attnbench.benchmark.timing.clocks import GRAPH_CLOCK
from attnbench.benchmark.timing.graphs import GRAPH_CALLS
from attnbench.benchmark.timing.slots import Timer
from attnbench.errors import AttnbenchError
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

_MAX_TIMERS = 4
_COPIED_BYTES = 2**28
"""Most bytes of the copies of inputs and parameters that a graph with a cold cache uses."""


class Bench:
    """State shared by the rows of a process: baselines, ceilings, and times of the null kernel."""

    def __init__(
        self,
        contract: Contract,
        *,
        seed: int = 0,
        baselines: tuple[str, str] = BASELINES,
    ) -> None:
        self.contract = contract
        self.baselines = baselines
        self.chance = random.Random(seed)  # noqa: S311 -- an order, not a secret
        self._baselines: dict[str, Subject | None] = {}
        self._timers: OrderedDict[tuple[str, str], Timer | None] = OrderedDict()
        self._ceilings: dict[tuple[str, str], Ceilings] = {}
        self._null_s: dict[tuple[str, str], float] = {}
        self._load = Load()

    def baseline(self, case: BenchCase, clock: str) -> Timer | None:
        """The baseline's timer at a case; ``None`` if the baseline does not support the case."""
        key = case.id, clock
        if key not in self._timers:
            while len(self._timers) >= _MAX_TIMERS:
                self._timers.popitem(last=False)
            self._timers[key] = self._timer(case, clock)
        self._timers.move_to_end(key)
        return self._timers[key]

    def _baseline_of(self, case: BenchCase) -> Subject | None:
        name = baseline_of("layer" if case.of_layers else "", self.baselines)
        if name not in self._baselines:
            self._baselines[name] = _baseline_subject(name)
        return self._baselines[name]

    def _timer(self, case: BenchCase, clock: str) -> Timer | None:
        subject = self._baseline_of(case)
        if subject is None or case.reason_against(subject) is not None:
            return None
        module, inputs = case.build(subject)
        call = measured_call(subject, module, inputs, case.direction)
        call()
        return timer_of(subject, case, call, self.contract, clock)

    def ceilings(self, case: BenchCase) -> Ceilings:
        """The machine's bandwidth and rate of matrix products, measured once per process."""
        key = case.case.device, case.case.dtype
        if key not in self._ceilings:
            self._ceilings[key] = ceilings(torch.device(key[0]), getattr(torch, key[1]))
        return self._ceilings[key]

    def null_s(self, case: BenchCase, clock: str) -> float | None:
        """Seconds of a call through ``attend`` with a kernel that computes nothing."""
        subject = self._baseline_of(case)
        if subject is None or subject.scoring is None or case.direction != "forward":
            return None
        if clock == GRAPH_CLOCK:
            return None  # a replayed graph does not contain this overhead
        key = case.id, clock
        if key not in self._null_s:
            if case.reason_against(subject) is not None:
                return None
            module, inputs = case.build(subject)
            shape = (*inputs.query.shape[:-1], inputs.value.shape[-1])
            output = torch.zeros(shape, dtype=inputs.query.dtype, device=inputs.query.device)
            call = null_call(subject, module, inputs, output)
            call()
            timer = timer_of(subject, case, call, self.contract, clock)
            self._null_s[key] = min(timer.slot().seconds for _ in range(3))
        return self._null_s[key]

    def load(self) -> dict[str, float]:
        """Load of the machine since this process began to measure."""
        return self._load.read()


def _baseline_subject(address: str) -> Subject | None:
    try:
        (subject,) = resolve(address)
    except AttnbenchError:
        return None  # no baseline without the built-in plugins
    return subject


def timer_of(
    subject: Subject, case: BenchCase, call: Call, contract: Contract, clock: str
) -> Timer:
    """The timer of a call, with copies of the call if a graph is replayed with a cold cache."""
    device, copies = torch.device(case.case.device), []
    is_replayed = (clock or contract.clock(case.case.device)) == GRAPH_CLOCK
    if is_replayed and contract.cache == "cold" and not isinstance(call, Step):
        size = max(1, compulsory_bytes(*case.build(subject), call))
        for _ in range(min(GRAPH_CALLS, _COPIED_BYTES // size)):
            copies.append(measured_call(subject, *case.build(subject), case.direction))
    return Timer(call, device, contract.pace(case.case.device), clock, tuple(copies))
