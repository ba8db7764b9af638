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
"""Names of the functions that wait."""


def affordable(
    subject: Subject, cases: Sequence[Case], profile: Profile, least: int
) -> frozenset[Case]:
    """The cases for which a check has time: all of them, or the smallest."""
    left = float(profile.functions)
    kept: list[Case] = []
    for case in sorted(cases, key=lambda case: calls_at(subject, case)):
        left -= calls_at(subject, case)
        if left < 0 and len(kept) >= least:
            break
        kept.append(case)
    return frozenset(kept)


def drawn_limit(subject: Subject, wanted: int, profile: Profile, least: int) -> int:
    """The number of cases that a check has time to draw, from ``least`` to ``wanted``."""
    each = calls_at(subject, Case((2,), 9, 9))
    most = profile.functions
    return wanted if each * wanted <= most else max(least, int(most / each))


def calls_at(subject: Subject, case: Case) -> float:
    """The approximate number of functions that a call at a case enters, in or from Python."""
    fixed, each = _counted(subject)
    return fixed + each * _pairs(case)


@functools.lru_cache(maxsize=64)
def _counted(subject: Subject) -> tuple[float, float]:
    """The functions entered by every call, and those added per query-key pair."""
    warm, small, large = (
        subject.legal(Case((1,), size, size, dtype=subject.dtypes[0])) for size in (5, 4, 24)
    )
    try:
        _entered(subject, warm)
        few, many = _entered(subject, small), _entered(subject, large)
    except (Exception, SystemExit):  # the checks report such errors
        return 0.0, 0.0
    more = _pairs(large) - _pairs(small)
    each = max(0.0, (many - few) / more) if more else 0.0
    return max(0.0, few - each * _pairs(small)), each


def _entered(subject: Subject, case: Case) -> int:
    module, inputs = subject.build(case)
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if event == "c_call" and getattr(argument, "__name__", "") in _WAITING:
            count += _WAIT

    operations = _Operations()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with operations:
            subject.output(module, inputs)
    finally:
        sys.setprofile(before)
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
