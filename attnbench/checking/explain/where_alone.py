"""Where alone a failure shows: the contrast between cases that failed and cases that passed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields

from attnbench.cases.case import Case
from attnbench.errors import either

_LENGTHS = ("q_len", "kv_len")
_FEATURES = {"query_size", "key_size", "value_size"}
_WORDS = {"q_len": "queries", "kv_len": "keys", "query_size": "features"}

_MOST = 2
"""Values that are named of those with which it holds."""

_LEAST = 4
"""A failure at more of something is no mere consequence of there being any of it."""

_KINDS = {
    "dtype": "in",
    "layout": "with the layout",
    "mask": "with the mask",
    "regime": "with values",
}


def where_alone(case: Case, failed: Collection[Case], passed: Collection[Case]) -> str:
    """What tells a failing case from cases that passed and differ in that alone, in words.

    Args:
        case: the smallest case that failed.
        failed, passed: all cases that were tried, by what they said.

    Returns:
        Such as ``in float16, not in float32; with 33 keys, not with 32``; ``""`` where the cases
        do not tell.
    """
    parts = []
    for name, words in _KINDS.items():
        value = getattr(case, name)
        others = sorted({getattr(other, name) for other in _beside(case, passed, name)})
        also = {getattr(other, name) for other in failed}
        others = [other for other in others if other not in also]
        if others:
            shown = others if len(others) <= _MOST + 1 else [*others[:_MOST], "others"]
            parts.append(f"{words} {value}, not {either(shown)}")
    parts += _by_size(case, failed, passed)
    return "; ".join(parts)


def _beside(case: Case, cases: Collection[Case], *names: str) -> Iterator[Case]:
    """The cases that differ from one in these fields alone."""
    for other in cases:
        changed = {f.name for f in fields(Case) if getattr(case, f.name) != getattr(other, f.name)}
        if changed - {"variants"} and changed <= {*names, "variants"}:
            yield other


def _by_size(case: Case, failed: Collection[Case], passed: Collection[Case]) -> Iterator[str]:
    for axes in (*((name,) for name in _LENGTHS), _LENGTHS, tuple(sorted(_FEATURES))):
        name = axes[-1] if axes[-1] in _WORDS else "query_size"
        here = getattr(case, name)
        found = [getattr(other, name) for other in _beside(case, passed, *axes)]
        holds = [size for size in found if size != here]
        fails = [getattr(other, name) for other in _beside(case, failed, *axes)]
        below = [size for size in holds if size < here]
        if here <= _LEAST or not below or any(size <= max(below) for size in fails):
            continue
        yield f"with {here} {_WORDS[name]}, not with {max(below)}"
        return
