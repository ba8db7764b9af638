"""How many rows and tokens a layer takes, and whether outputs follow the number of tokens."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import RefusalError, headline

LayerSubject = Any
"""A subject that is a layer, whose limits these are."""

_FEWEST = 4
"""A layer that raises for as few rows or tokens is wrong."""

_LENGTHS = range(4, 17)

_TURNS = 2.5
"""Times the largest difference: less is a way that hardly turns; fresh numbers make 4 or more."""


def limits_of(subject: LayerSubject, most_rows: int, most_tokens: int) -> tuple[int, int]:
    """The most rows, and the most tokens, of a call that does not raise; 0 without a limit."""
    return (
        _limit(lambda count: not _raised(subject, count, 1), most_rows),
        _limit(lambda count: not _raised(subject, 1, count), most_tokens),
    )


def limits_in_words(subject: LayerSubject) -> str:
    """Lines for the end of a report."""
    rows, tokens = subject.limits
    more = [(f"{rows} rows", (rows + 1, 1))] * bool(rows)
    more += [(f"{tokens} tokens", (1, tokens + 1))] * bool(tokens)
    most = " and ".join(f"more than {of}: {_raised(subject, *sizes)}" for of, sizes in more)
    followed = (
        "whether outputs may follow the number of later tokens, as a scale or a base chosen by the "
        'length makes them do; declare the convention positions="relative" if only distances count'
    )
    scaled = subject.conventions.positions != "relative" and change_by_length(subject) == "scale"
    lines = [text for holds, text in ((more, f"calls with {most}"), (scaled, followed)) if holds]
    return "\n".join(f"Not looked at, {subject.name}: {text}" for text in lines)


@functools.lru_cache(maxsize=256)
def change_by_length(subject: LayerSubject) -> str:
    """How outputs of a causal layer without a cache change with the number of later tokens.

    Returns:
        Empty if they do not. ``scale`` if the first token's, which attends to itself alone, stays
        or goes along a line, and the second one's goes one way, as by a scale chosen by the length.
        Or else ``moved``.
    """
    if not subject.spec.causal or subject.spec.cache is not None or subject.spec.grid:
        return ""
    try:
        module, hidden = _called(subject, 3, _LENGTHS[-1])
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = [subject.call(module, hidden[:, :n])[0][:, :2].double() for n in _LENGTHS]
            again = subject.call(module, hidden[:, : _LENGTHS[0]])[0][:, :2].double()
    except Exception:  # which a check reports
        return ""
    outputs = torch.stack(found)
    if _alike(outputs) or not torch.equal(again, outputs[0]):
        return ""
    apart = torch.cdist(outputs.flatten(1)[None], outputs.flatten(1)[None])[0]
    turns = bool(apart.diagonal(1).sum() > _TURNS * apart.max())
    first = outputs[:, :, 0].transpose(0, 1)
    along = torch.linalg.svdvals(first - first[:, :1])
    is_line = first.shape[-1] > 1 and bool((along[:, 1] <= 1e-3 * along[:, 0]).all())
    return "scale" if (_alike(outputs[:, :, 0]) or is_line) and not turns else "moved"


def _alike(outputs: Tensor) -> bool:
    return torch.allclose(outputs, outputs[:1], rtol=1e-3, atol=1e-4)


def _limit(takes: Callable[[int], bool], most: int) -> int:
    if most <= _FEWEST or takes(most) or not takes(_FEWEST):
        return 0
    counts = range(_FEWEST, most)
    return counts[bisect.bisect(counts, False, key=lambda count: not takes(count)) - 1]


def _raised(subject: LayerSubject, rows: int, tokens: int) -> str:
    """What a call of so many rows and tokens raises; empty if nothing."""
    try:
        module, hidden = _called(subject, rows, tokens)
        with torch.no_grad():
            module(subject._on_grid(hidden), **subject.beside(hidden))
    except RefusalError as error:
        return str(error)
    except Exception as error:
        return f"they raise {headline(error)}"
    return ""


def _called(subject: LayerSubject, rows: int, tokens: int) -> tuple[nn.Module, Tensor]:
    """A module, and hidden states to call it with."""
    dtype = subject.dtypes[0]
    with torch.random.fork_rng(devices=[]):
        size = subject._nearest(8)
        module = subject.make(size).to(getattr(torch, dtype))
        module.eval()
        case = Case((rows,), tokens, tokens, size, size, size, dtype)
        return module, subject.inputs(case).hidden
