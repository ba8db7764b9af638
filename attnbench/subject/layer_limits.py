"""How many rows and tokens a layer takes, and whether outputs follow the number of tokens."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case

if TYPE_CHECKING:
    from attnbench.subject.layer import LayerSubject

_FEWEST = 4
"""A layer that raises for as few rows or tokens is wrong."""

_LENGTHS = range(4, 17)

_TURNS = 2.5
"""Times the largest difference: less is a way that hardly turns; fresh numbers make 4 or more."""


def limits_of(subject: LayerSubject, most_rows: int, most_tokens: int) -> tuple[int, int]:
    """The most rows, and the most tokens, of a call that does not raise; 0 without a limit."""
    return (
        _limit(lambda count: _takes(subject, count, 1), most_rows),
        _limit(lambda count: _takes(subject, 1, count), most_tokens),
    )


def limits_in_words(subject: LayerSubject) -> str:
    """Lines for the end of a report."""
    counts = zip(subject.limits, ("rows", "tokens"), strict=True)
    most_of = [f"{most} {of}" for most, of in counts if most]
    most = f"calls with more than {' or '.join(most_of)}, which raise"
    followed = (
        "whether outputs may follow the number of later tokens, as a scale or a base chosen by the "
        'length makes them do; declare the convention positions="relative" if only distances count'
    )
    moved = subject.conventions.positions != "relative" and follows_length(subject)
    lines = [text for holds, text in ((most_of, most), (moved, followed)) if holds]
    return "\n".join(f"Not looked at, {subject.name}: {text}" for text in lines)


@functools.lru_cache(maxsize=256)
def outputs_by_length(subject: LayerSubject) -> Tensor | None:
    """The outputs of the same two tokens ahead of 2 to 14 others, ``(lengths, B, 2, E)``, float64.

    ``None`` unless the layer is causal, without a cache that would show it, and takes that many.
    """
    if not subject.spec.causal or subject.spec.cache is not None or subject.spec.grid:
        return None
    try:
        module, hidden = _called(subject, 3, _LENGTHS[-1])
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = [subject.call(module, hidden[:, :n])[0][:, :2].double() for n in _LENGTHS]
            again = subject.call(module, hidden[:, : _LENGTHS[0]])[0][:, :2].double()
    except Exception:  # which a check reports
        return None
    return torch.stack(outputs) if torch.equal(again, outputs[0]) else None


def follows_length(subject: LayerSubject) -> bool:
    """Whether the number of later tokens changes outputs as a scale chosen by the length does.

    The first token attends to itself alone, of which no scale of the scores is seen.
    """
    outputs = outputs_by_length(subject)
    if outputs is None or wanders(subject):
        return False
    first, second = (_alike(outputs[:, :, place]) for place in (0, 1))
    return first and not second


def wanders(subject: LayerSubject) -> bool:
    """Whether outputs go back and forth with that number, as with no scale."""
    outputs = outputs_by_length(subject)
    if outputs is None or _alike(outputs):
        return False
    apart = torch.cdist(outputs.flatten(1)[None], outputs.flatten(1)[None])[0]
    return bool(apart.diagonal(1).sum() > _TURNS * apart.max())


def _alike(outputs: Tensor) -> bool:
    return torch.allclose(outputs, outputs[:1], rtol=1e-3, atol=1e-4)


def _limit(takes: Callable[[int], bool], most: int) -> int:
    if most <= _FEWEST or takes(most) or not takes(_FEWEST):
        return 0
    counts = range(_FEWEST, most)
    return counts[bisect.bisect(counts, False, key=lambda count: not takes(count)) - 1]


def _takes(subject: LayerSubject, rows: int, tokens: int) -> bool:
    try:
        module, hidden = _called(subject, rows, tokens)
        with torch.no_grad():
            module(subject._on_grid(hidden), **subject.beside(hidden))
    except Exception:
        return False
    return True


def _called(subject: LayerSubject, rows: int, tokens: int) -> tuple[nn.Module, Tensor]:
    """A module, and hidden states to call it with."""
    dtype = subject.dtypes[0]
    with torch.random.fork_rng(devices=[]):
        size = subject._nearest(8)
        module = subject.make(size).to(getattr(torch, dtype)).eval()
        case = Case((rows,), tokens, tokens, size, size, size, dtype)
        return module, subject.inputs(case).hidden
