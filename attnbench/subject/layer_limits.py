"""How many rows and tokens a layer takes: some have buffers of a fixed size."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from attnbench.cases.case import Case

if TYPE_CHECKING:
    from attnbench.subject.layer import LayerSubject

_FEWEST = 4
"""A layer that raises for as few rows or tokens is wrong."""


def limits_of(subject: LayerSubject, most_rows: int, most_tokens: int) -> tuple[int, int]:
    """The most rows, and the most tokens, of a call that does not raise; 0 without a limit."""
    return (
        _limit(lambda count: _takes(subject, count, 1), most_rows),
        _limit(lambda count: _takes(subject, 1, count), most_tokens),
    )


def limits_in_words(name: str, limits: tuple[int, int]) -> str:
    """A line for the end of a report."""
    most_of = [f"{most} {of}" for most, of in zip(limits, ("rows", "tokens"), strict=True) if most]
    text = f"Not looked at, {name}: calls with more than {' or '.join(most_of)}, which raise"
    return text if most_of else ""


def _limit(takes: Callable[[int], bool], most: int) -> int:
    if most <= _FEWEST or takes(most) or not takes(_FEWEST):
        return 0
    counts = range(_FEWEST, most)
    return counts[bisect.bisect(counts, False, key=lambda count: not takes(count)) - 1]


def _takes(subject: LayerSubject, rows: int, tokens: int) -> bool:
    dtype = subject.dtypes[0]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            size = subject._nearest(8)
            module = subject.make(size).to(getattr(torch, dtype)).eval()
            case = Case((rows,), tokens, tokens, size, size, size, dtype)
            hidden = subject.inputs(case).hidden
            module(subject._on_grid(hidden), **subject.beside(hidden))
    except Exception:
        return False
    return True
