"""Where alone a failure shows: in half types, from a number of keys on, beside whole blocks, or
with options where there is one query, or no mask.
"""

from __future__ import annotations

from collections.abc import Callable

from attnbench.cases.case import Case
from attnbench.checking.known_causes import known_causes
from attnbench.checking.outcomes import COMPILING, Failure
from attnbench.errors import InvariantViolation
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_HALVES, _WIDE = ("float16", "bfloat16"), ("float32", "float64")

_LEAST = 8
"""Cases are shrunk to fewer, so that a size above it is needed for the failure."""

_LEAST_BLOCK = 4
"""Smallest number of slots in a block, multiples of which may be where alone it fails."""

_MOST_PAIRS = 2**15
"""Most query-key pairs in a call that is made to tell it."""

_MASKS = {
    "none": "",
    "boolean": "a boolean mask",
    "floating": "a floating mask",
    "padding": "valid lengths",
    "causal": "causality",
}
_FLAGS = {"padding": "valid_lens", "causal": "is_causal"}
"""The argument of a mask; a subject that does not accept it gets a tensor instead."""

_LEAST_MASKS = 2
"""Kinds of mask beside none that have to tell something."""

_SQUARES = ((2, 2), (4, 4), (7, 7), (20, 20))
"""Numbers of queries and keys; the last are more than a block of 16 holds."""

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

    found = [_by_size(case, fails), _by_dtype(subject, case, fails)]
    if invariant.name in known_causes()["anywhere"]:
        lengths = _by_queries(case, fails) or _by_lengths(case, fails)
        mask = _by_mask(subject, case, fails)
        both = f"{lengths or 'where there is'} {'and ' * bool(lengths)}{mask}" if mask else lengths
        found += [both, _by_heads(case, fails)]
    return ", ".join(filter(None, found))


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


def _by_queries(case: Case, fails: _Fails) -> str:
    """Whether it takes one query, or several, of what one query shows as well as several."""
    keys = [case.kv_len, *(max(case.kv_len, 3) + more for more in (0, 1, 4))]
    alone = [fails(case.replace(q_len=1, kv_len=count)) for count in keys]
    among = [fails(case.replace(q_len=q, kv_len=count)) for q in (2, 3, 4) for count in keys]
    if _parts(alone, among):
        ratios = [fails(case.replace(q_len=q, kv_len=q * n)) for q in (2, 3) for n in keys]
        return "where there is one query" if _parts(alone, [*among, *ratios]) else ""
    return "where there are several queries" if _parts(among, alone) else ""


def _parts(failing: list[bool | None], holding: list[bool | None]) -> bool:
    """Whether nearly all of some calls fail, and none of others, as far as they tell."""
    told = failing.count(True) + failing.count(False)
    is_sure = failing.count(True) > 1 and 4 * failing.count(True) >= 3 * told
    return is_sure and False in holding and not any(holding)


def _by_lengths(case: Case, fails: _Fails) -> str:
    """Whether it takes as many queries as keys, or not as many."""

    def at(*pairs: tuple[int, int]) -> list[bool | None]:
        return [fails(case.replace(q_len=q_len, kv_len=kv_len)) for q_len, kv_len in pairs]

    square, other = at(*_SQUARES), at((2, 4), (3, 7), (1, 4), (5, 9))
    if _parts(square, other):
        return "where there are as many queries as keys"
    return "where there are fewer queries than keys" if _parts(other, square) else ""


def _by_heads(case: Case, fails: _Fails) -> str:
    grouped = case.variant("heads", "own") == "grouped"
    return "with grouped heads" if grouped and fails(case.tried(heads="own")) is False else ""


def _by_mask(subject: Subject, case: Case, fails: _Fails) -> str:
    """Whether it takes the absence of any mask, or some kinds of mask."""
    wide = case.replace(q_len=max(case.q_len, 3), kv_len=max(case.kv_len, 5))
    fails_at = {
        mask: found
        for mask in _MASKS
        if (found := fails(case.replace(mask=mask)) or fails(wide.replace(mask=mask))) is not None
    }
    is_open = fails_at.pop("none", None)
    if is_open is None or len(fails_at) < _LEAST_MASKS:
        return ""
    if is_open:
        return "" if any(fails_at.values()) else "no mask"
    tensor = "boolean" if "boolean" in subject.conventions.masks else "floating"
    arguments: dict[str, bool] = {}
    for mask, found in fails_at.items():
        given = mask if _FLAGS.get(mask, mask) in (mask, *subject.accepts) else tensor
        arguments[_MASKS[given]] = found or arguments.get(_MASKS[given], False)
    told = [words for words, found in arguments.items() if found]
    return " or ".join(filter(None, (", ".join(told[:-1]), *told[-1:])))


def _by_size(case: Case, fails: _Fails) -> str:
    for axes, what in _AXES.items():
        sizes = {getattr(case, axis) for axis in axes}
        if len(sizes) > 1 or (size := sizes.pop()) < _LEAST_BLOCK:
            continue

        def at(number: int, axes: tuple[str, ...] = axes) -> bool | None:
            return fails(case.replace(**dict.fromkeys(axes, number)))

        below = {size - 1, size - 2, size // 2, min(4, size - 1)}
        if any(at(number) is not False for number in below):
            continue
        found = {at(number) for number in (size + 1, size + 2, size + 5)}
        if found == {False}:
            parts = {at(size + size // part) for part in (2, 3, 4)}  # as of a smaller number
            is_multiple = parts == {False} and at(2 * size) and at(3 * size)
            if is_multiple:
                return f"where the number of {what} is a multiple of {size}"
            if size > _LEAST:
                return f"with {size} {what}, and not {size - 1}"
        elif None not in found and (size > _LEAST or size == _LEAST_BLOCK + 1):
            return _beyond(size - 1, what, at)
    return ""


def _beyond(block: int, what: str, fails_at: Callable[[int], bool | None]) -> str:
    """What is alike in the numbers above a block's that fail; those just below hold."""
    for step in (n for n in range(_LEAST_BLOCK, block + 1) if block % n == 0):
        whole = [fails_at(block + step * n) for n in (1, 2, 3)]
        beside = [fails_at(block + n) for n in (1, step - 1, step + 1, step + step // 2)]
        if not any(whole) and None not in whole and all(beside):
            return f"where there are more than {block} {what} and no multiple of {step}"
    is_above = all(fails_at(n) for n in (block + 2, block + 6, 2 * block, 2 * block + 1, 3 * block))
    return f"where there are more than {block} {what}" if is_above else ""
