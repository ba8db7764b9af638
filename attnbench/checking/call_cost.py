"""The cost of a subject's calls in Python, estimated independently of the machine.

A subject that loops in Python, is traced anew for every shape, or waits for other processes, would
keep a check busy for many minutes. The functions that a call enters are counted at two sizes; one
of torch counts as ten, and one that waits for an answer as thousands.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from attnbench.cases.case import Case
from attnbench.checking.profiles import Profile
from attnbench.subject.subject import Subject

_OPERATION = 10
"""Weight of a call of torch, which takes some microseconds."""

_WAIT = 5_000
"""Weight of waiting for another process, which takes about a millisecond."""

_WAITING = frozenset({"poll", "recv", "recv_into", "select"})
"""Names of functions that wait."""


def affordable(
    subject: Subject, cases: Sequence[Case], profile: Profile, minimum: int
) -> frozenset[Case]:
    """The cases for which a check has time: all of them, or the smallest."""
    budget = float(profile.functions)
    selection: list[Case] = []
    for case in sorted(cases, key=lambda case: calls_at(subject, case)):
        budget -= calls_at(subject, case)
        if budget < 0 and len(selection) >= minimum:
            break
        selection.append(case)
    return frozenset(selection)


def drawn_limit(subject: Subject, count: int, profile: Profile, minimum: int) -> int:
    """The number of cases that a check has time to draw, from ``minimum`` to ``count``."""
    cost = calls_at(subject, Case((2,), 9, 9))
    budget = profile.functions
    return count if cost * count <= budget else max(minimum, int(budget / cost))


def calls_at(subject: Subject, case: Case) -> float:
    """The approximate number of functions that a call at a case enters, in or from Python."""
    base, per_pair = _function_counts(subject)
    return base + per_pair * _pairs(case)


@functools.lru_cache(maxsize=64)
def _function_counts(subject: Subject) -> tuple[float, float]:
    """The functions entered by every call, and those added per query-key pair."""
    warm, small, large = (
        subject.legal(Case((1,), size, size, dtype=subject.dtypes[0])) for size in (5, 4, 24)
    )
    try:
        _entries(subject, warm)
        small_count, large_count = _entries(subject, small), _entries(subject, large)
    except (Exception, SystemExit):  # the checks report such errors
        return 0.0, 0.0
    pairs = _pairs(large) - _pairs(small)
    per_pair = max(0.0, (large_count - small_count) / pairs) if pairs else 0.0
    return max(0.0, small_count - per_pair * _pairs(small)), per_pair


def _entries(subject: Subject, case: Case) -> int:
    module, inputs = subject.build(case)
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if event == "c_call" and getattr(argument, "__name__", "") in _WAITING:
            count += _WAIT

    operations = _Operations()
    profiler = sys.getprofile()
    sys.setprofile(note)
    try:
        with operations:
            subject.output(module, inputs)
    finally:
        sys.setprofile(profiler)
    return count + _OPERATION * operations.count


class _Operations(TorchFunctionMode):
    """Count calls of torch's functions and tensor methods."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _pairs(case: Case) -> int:
    return math.prod(case.lead) * case.q_len * case.kv_len
