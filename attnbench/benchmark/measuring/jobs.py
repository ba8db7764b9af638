"""Jobs: the rows that a process of a session measures. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.benchmark.bench_case import BenchCase
from attnbench.registry.address import Address


@dataclass(frozen=True)
class Job:
    """A row that a process measures.

    Args:
        target: address of the subject.
        case: case at which it is measured.
        with_facts: whether to also measure agreement, memory and counts.
        clock: clock that the first process chose; if empty, this process chooses one.
    """

    target: Address
    case: BenchCase
    with_facts: bool = True
    clock: str = ""
