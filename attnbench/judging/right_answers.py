"""The right answers: attention in float64, written by the judge's side and run in its process."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from attnbench.benchmark.agreement.attention_agreement import cut, ratio_of_errors
from attnbench.oracle.budget import Oracle
from attnbench.oracle.textbook import TEXTBOOK, ScaledDot
from attnbench.subject.tensors import Inputs

_FURTHEST = 3
"""Rows of a whole output that are looked at closely, of each kind."""
_MANY = 16
"""Rows of which the middle one tells."""
_UNITS = {torch.float32: 4.0}
"""By how many units of rounding it may be off; where sums are as narrow as the output, like terms
that are added one by one drift further than a random walk."""
_KNOWN = 0.5
"""By how much rounding may move the largest score of such a row; further, and another key wins."""
_PAIRS, _ITEMS, _ROWS = 2**17, 4, 8
"""Most pairs of a query and a key of which all are compared; items and least rows of others."""


def error_of_rows(inputs: Inputs, output: Tensor, item: int, rows: list[int]) -> float:
    """The largest error of some rows of one item, as a multiple of the allowed error.

    Args:
        inputs: ``(B, H, L, E)``, with causality as a mask.
        output: ``(*lead, L, Ev)``, in any floating dtype.
        item: which of the leading places, counted through.
        rows: queries to look at.
    """
    oracle = Oracle(TEXTBOOK, ScaledDot(inputs.scale), cut(TEXTBOOK, inputs, item, rows))
    found = output.reshape(-1, *output.shape[-2:])[item, rows].double().unsqueeze(0)
    off = (found - oracle.output).abs()
    ratio = ratio_of_errors(off, oracle.budget())
    return ratio if ratio <= 1.0 else ratio_of_errors(off, oracle.budget(sure=True))


def error_of_all(inputs: Inputs, output: Tensor, chance: random.Random) -> float:
    """An error above what is allowed, or else the largest error that was looked at closely.

    All rows are compared, or as many drawn ones as there is time for. What rounds values and sums
    is allowed at once; the whole of what rounding explains is computed for some of the other rows:
    those furthest off, those furthest off for their size, and some that are drawn.

    What a narrower format loses, such as eight bits in a half type or sixteen in float32, stays
    within that where many keys are averaged, so the middle one of many rows counts, too, in units
    of rounding; rows whose scores are so large that rounding decides which key wins are left out.
    """
    open_: list[tuple[float, float, int, int]] = []
    worst = 0.0
    units: list[Tensor] = []
    for part, items, rows in _parts(inputs, chance):
        oracle = Oracle(TEXTBOOK, ScaledDot(part.scale), part)
        found = output.flatten(0, -3)[items][:, rows].double()
        off = (found - oracle.output.reshape(found.shape)).abs().nan_to_num(math.inf, math.inf)
        share = (off / oracle.floor().reshape(found.shape)).nan_to_num(0.0, math.inf).amax(-1)
        worst = max(worst, float(share.clamp_max(1.0).max()) if share.numel() else 0.0)
        size = off.amax(-1)
        for place, row in (share > 1.0).nonzero().tolist():
            numbers = float(size[place, row]), float(share[place, row])
            open_.append((*numbers, items[place], rows[row]))
        top = oracle.scores.masked_fill(~oracle.allowed, -math.inf).amax(-1).reshape(share.shape)
        known = oracle.eps * top.abs() < _KNOWN
        units.append((off.square().mean(-1) / _one_unit(oracle).reshape(share.shape))[known])
    if units and len(rounded := torch.cat(units)) >= _MANY:
        worst = max(worst, float(rounded.median().sqrt()) / _UNITS.get(inputs.query.dtype, 1.0))
    return worst if worst > 1.0 else max(worst, _error_of_furthest(inputs, output, open_, chance))


def furthest(
    inputs: Inputs, output: Tensor, chance: random.Random
) -> tuple[tuple[int, int, int, int], float, float]:
    """The place (B, H, L, Ev) of the worst element of an output, its value, and the right one.

    Args:
        inputs, output, chance: of :func:`error_of_all`; the same rows are compared.
    """
    found: list[tuple[float, tuple[int, int, int, int], float, float]] = []
    for part, items, rows in _parts(inputs, chance):
        oracle = Oracle(TEXTBOOK, ScaledDot(part.scale), part)
        got = output.flatten(0, -3)[items][:, rows].double()
        right = oracle.output.reshape(got.shape)
        off = ((got - right).abs() / oracle.floor().reshape(got.shape)).nan_to_num(math.inf)
        place = tuple(map(int, np.unravel_index(int(off.argmax()), got.shape)))
        item = divmod(items[place[0]], inputs.query.shape[1])
        spot = (*item, rows[place[1]], place[2])
        found.append((float(off[place]), spot, float(got[place]), float(right[place])))
    return max(found)[1:]


def _one_unit(oracle: Oracle) -> Tensor:
    """``(B, H, L)``: mean square error if everything is off by one unit at random.

    These are the elements of query and key, the scores, the weights, the values and the output.
    Rounding to the nearest is off by half a unit at most, and a long sum by as much as it may walk.
    """
    inputs, weights, output = oracle.inputs, oracle.log_weights.exp(), oracle.output
    query, key, value = (t.double().square() for t in (inputs.query, inputs.key, inputs.value))
    scale = inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
    scores = oracle.scores.masked_fill(~oracle.allowed, 0.0)
    moved = weights.square() * (2 * scale**2 * (query @ key.mT) + scores.square())
    from_scores = moved @ value - 2 * output * (moved @ inputs.value.double())
    from_scores += output.square() * moved.sum(-1, keepdim=True)
    sums = 2 * weights.square() @ value + output.square()
    product, total = oracle.product_eps(oracle.eps), oracle.sum_eps(oracle.eps)
    every = product**2 * from_scores.clamp_min(0.0) + total**2 * sums
    return (every + oracle.tiny**2).mean(-1)


def _error_of_furthest(
    inputs: Inputs,
    output: Tensor,
    rows: list[tuple[float, float, int, int]],
    chance: random.Random,
) -> float:
    """The largest error of some rows: those with the largest numbers, and some that are drawn.

    Args:
        inputs, output: of a call.
        rows: two numbers for each, its item, and its place in it.
        chance: draws rows.
    """
    few = min(_FURTHEST, len(rows))
    chosen = {
        *sorted(rows)[-few:],
        *sorted(rows, key=lambda r: r[1])[-few:],
        *chance.sample(rows, few),
    }
    items: dict[int, list[int]] = {}
    for *_, item, row in sorted(chosen):
        items.setdefault(item, []).append(row)
    worst = 0.0
    for item, some in items.items():
        worst = max(worst, error_of_rows(inputs, output, item, some))
        if worst > 1.0:  # how much further others are off changes nothing, and takes seconds
            break
    return worst


def _parts(inputs: Inputs, chance: random.Random) -> Iterator[tuple[Inputs, list[int], list[int]]]:
    """What is compared at a time, its items and their rows: all, or what there is time for."""
    count, q_len = inputs.query.shape[:-2].numel(), inputs.query.shape[-2]
    kv_len = max(1, inputs.key.shape[-2])
    if count * q_len * kv_len <= _PAIRS:
        yield inputs, list(range(count)), list(range(q_len))
        return
    for item in chance.sample(range(count), min(count, _ITEMS)):
        some = min(q_len, max(_ROWS, _PAIRS // _ITEMS // kv_len))
        rows = sorted({0, q_len - 1, *chance.sample(range(q_len), some)})
        part = cut(TEXTBOOK, inputs, item, rows).replace(scale=inputs.scale)
        yield part, [item], rows
