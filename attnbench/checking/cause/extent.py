"""Where alone a failure shows: in half types, from a number of keys on, or beside whole blocks."""

from __future__ import annotations

from collections.abc import Callable

from attnbench.cases.case import Case
from attnbench.checking.outcomes import COMPILING, Failure
from attnbench.errors import InvariantViolation
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_HALVES, _WIDE = ("float16", "bfloat16"), ("float32", "float64")

_LEAST = 8
"""Cases are shrunk to fewer, so that a size above it is needed for the failure."""

_MOST_PAIRS = 2**15
"""Most query-key pairs in a call that is made to tell it."""

_AXES = {("kv_len",): "keys", ("q_len",): "queries", ("q_len", "kv_len"): "queries and keys"}


def extent_of(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """Where alone a failure shows, in words, as calls beside its case tell; else ``""``."""
    if failure.case is None or not failure.smallest or subject.kind == "layer":
        return ""
    if invariant.name in COMPILING:
        return ""
    case = Case.from_id(failure.case)

    def fails(other: Case) -> bool | None:
        """Whether the invariant fails there too; ``None`` if nothing is said there."""
        if subject.legal(other) != other or other.q_len * other.kv_len > _MOST_PAIRS:
            return None
        try:
            invariant.check(subject, other)
        except InvariantViolation:
            return True
        except (Exception, SystemExit):  # refusals, rejected cases and errors say nothing here
            return None
        return False

    return ", ".join(filter(None, (_by_size(case, fails), _by_dtype(subject, case, fails))))


_Fails = Callable[[Case], bool | None]


def _by_dtype(subject: Subject, case: Case, fails: _Fails) -> str:
    if not case.is_narrow:
        return ""
    wide = [fails(case.replace(dtype=name)) for name in _WIDE if name in subject.dtypes]
    if not wide or any(found is not False for found in wide):
        return ""
    others = [name for name in _HALVES if name in subject.dtypes and name != case.dtype]
    is_only = any(fails(case.replace(dtype=name)) is False for name in others)
    return f"in {case.dtype} alone" if is_only else "in half types alone"


def _by_size(case: Case, fails: _Fails) -> str:
    for axes, what in _AXES.items():
        sizes = {getattr(case, axis) for axis in axes}
        if len(sizes) > 1 or (size := sizes.pop()) <= _LEAST:
            continue

        def at(number: int, axes: tuple[str, ...] = axes) -> bool | None:
            return fails(case.replace(**dict.fromkeys(axes, number)))

        below, above = {size - 1, size - 2, size // 2, 4}, {size + 1, size + 2, size + 5}
        if any(at(number) is not False for number in below):
            continue
        found = {at(number) for number in above}
        if found == {False}:
            parts = {at(size + size // part) for part in (2, 3, 4)}  # as of a smaller number
            is_multiple = parts == {False} and at(2 * size) and at(3 * size)
            multiple = f"where the number of {what} is a multiple of {size}"
            return multiple if is_multiple else f"with {size} {what}, and not {size - 1}"
        if found == {True}:
            block = size - 1
            ends = [at(2 * block), at(2 * block + 1), at(block + block // 2)]
            if block > _LEAST // 2 and ends == [False, True, True]:
                return f"where there are more than {block} {what} and no multiple of {block}"
            if all(ends):
                return f"where there are more than {block} {what}"
    return ""
