"""Jobs: what a process of a session is asked for. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.benchmark.bench_case import BenchCase

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """A row that a process is to take.

    Args:
        target: the address by which the subject is found.
        subject: its name, since an address may hold several.
        case: at which.
        look: whether to look closer: agreement, memory, counts.
        clock: the one that the first process chose; chosen here if empty.
    """

    target: str
    subject: str
    case: BenchCase
    look: bool = True
    clock: str = ""
