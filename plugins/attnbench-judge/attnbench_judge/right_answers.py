"""The right answers: attention in float64, written by the judge's side and run in its process."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench import Inputs
from attnbench.testing import expected

_FURTHEST = 3
"""Rows of a whole output that are looked at closely, of each kind."""
_MANY, _TESTED = 16, 256
"""Least rows of which the middle one tells, and about how many are drawn."""
_UNITS = {torch.float32: 4.0}
"""By how many units of rounding it may be off; where sums are as narrow as the output, like terms
that are added one by one drift further than a random walk."""
_KNOWN = 0.5
"""By how much rounding may move the largest score of such a row; further, and another key wins."""
_PAIRS, _ITEMS, _ROWS = 2**17, 4, 8
"""Most pairs of a query and a key of which all are compared; items and least rows of others."""


def error_of_rows(inputs: Inputs, item: int, rows: list[int], output: Tensor) -> float:
    """The largest error of some rows, as a multiple of all that rounding explains.

    Args:
        inputs: ``(B, H, L, E)``, with causality as a mask.
        item: which of the leading places, counted through.
        rows: queries to look at.
        output: ``(*lead, L, Ev)``.
    """
    oracle = expected(_cut(inputs, item, rows))
    found = output.reshape(-1, *output.shape[-2:])[item, rows].double()
    off = (found.unsqueeze(0) - oracle.output).abs()
    ratio = _ratio(off, oracle.budget())
    return ratio if ratio <= 1.0 else _ratio(off, oracle.budget(sure=True))


class RightOutput:
    """The right output of all rows, or of as many drawn ones as there is time for.

    Args:
        inputs: ``(B, H, L, E)``, with causality as a mask.
        chance: draws rows.
        few: whether one, two or three rows of an item are enough.
    """

    def __init__(self, inputs: Inputs, chance: random.Random, *, few: bool = False) -> None:
        self._inputs, self._chance = inputs, chance
        self._parts = [_Part(*one, chance) for one in _chosen(inputs, chance, few=few)]

    def error(self, output: Tensor) -> float:
        """An error above what is allowed, or else the largest error that was looked at closely.

        What rounds values and sums is allowed at once; the whole of what rounding explains is
        computed for some of the other rows: those furthest off, those furthest off for their size,
        and some that are drawn.

        What a narrower format loses, such as eight bits in a half type or sixteen in float32, stays
        within that where many keys are averaged, so the middle one of many rows counts, too, in
        units of rounding; rows whose scores are so large that rounding decides which key wins are
        left out.
        """
        open_: list[tuple[float, float, int, int]] = []
        worst = 0.0
        units: list[Tensor] = []
        for part in self._parts:
            off = part.off(output).nan_to_num(math.inf, math.inf)
            share = (off / part.floor).nan_to_num(0.0, math.inf).amax(-1)
            worst = max(worst, float(share.clamp_max(1.0).max()) if share.numel() else 0.0)
            size = off.amax(-1)
            for place, row in (share > 1.0).nonzero().tolist():
                numbers = float(size[place, row]), float(share[place, row])
                open_.append((*numbers, part.items[place], part.rows[row]))
            units.append((off[:, part.tested].square().mean(-1) / part.unit)[part.known])
        if units and len(rounded := torch.cat(units)) >= _MANY:
            unit = _UNITS.get(self._inputs.query.dtype, 1.0)
            worst = max(worst, float(rounded.median().sqrt()) / unit)
        return worst if worst > 1.0 else max(worst, self._error_of_furthest(output, open_))

    def furthest(self, output: Tensor) -> tuple[tuple[int, int, int, int], float, float]:
        """The place (B, H, L, Ev) of the worst element of an output, its value, the right one."""
        found: list[tuple[float, tuple[int, int, int, int], float, float]] = []
        for part in self._parts:
            got, right = part.of(output), part.right
            off = (part.off(output) / part.floor).nan_to_num(math.inf)
            place = tuple(map(int, np.unravel_index(int(off.argmax()), got.shape)))
            item = divmod(part.items[place[0]], self._inputs.query.shape[1])
            spot = (*item, part.rows[place[1]], place[2])
            found.append((float(off[place]), spot, float(got[place]), float(right[place])))
        return max(found)[1:]

    def _error_of_furthest(
        self, output: Tensor, rows: list[tuple[float, float, int, int]]
    ) -> float:
        """The largest error of some rows: those with the largest numbers, and some drawn ones.

        Args:
            output: of a call.
            rows: two numbers for each, its item, and its place in it.
        """
        few = min(_FURTHEST, len(rows))
        chosen = {
            *sorted(rows)[-few:],
            *sorted(rows, key=lambda r: r[1])[-few:],
            *self._chance.sample(rows, few),
        }
        items: dict[int, list[int]] = {}
        for *_, item, row in sorted(chosen):
            items.setdefault(item, []).append(row)
        worst = 0.0
        for item, some in items.items():
            worst = max(worst, error_of_rows(self._inputs, item, some, output))
            if worst > 1.0:  # how much further others are off changes nothing, and takes seconds
                break
        return worst


class _Part:
    """What is compared at a time: the right output ``(items, rows, Ev)``, and what is allowed.

    Args:
        inputs: of these items and rows.
        items: counted through.
        rows: of each.
        chance: draws the rows that are compared by units of rounding.
    """

    def __init__(
        self, inputs: Inputs, items: list[int], rows: list[int], chance: random.Random
    ) -> None:
        self.items, self.rows = items, rows
        oracle = expected(inputs)
        shape = len(items), len(rows), oracle.output.shape[-1]
        self.right, self.floor = oracle.output.reshape(shape), oracle.floor().reshape(shape)
        count = min(len(rows), 1 + _TESTED // len(items))
        self.tested = _drawn(len(rows), count, chance)
        allowed, scores = (t[..., self.tested, :] for t in (oracle.allowed, oracle.scores))
        top = scores.masked_fill(~allowed, -math.inf).amax(-1).reshape(shape[0], count)
        self.known = oracle.eps * top.abs() < _KNOWN
        self.unit = _one_unit(oracle, self.tested).reshape(shape[0], count)

    def of(self, output: Tensor) -> Tensor:
        """The same part of an output."""
        return output.flatten(0, -3)[self.items][:, self.rows].double()

    def off(self, output: Tensor) -> Tensor:
        """By how much each element is off."""
        return (self.of(output) - self.right).abs()


def _one_unit(oracle: Any, rows: list[int]) -> Tensor:
    """``(B, H, rows)``: mean square error if everything is off by one unit at random.

    These are the elements of query and key, the scores, the weights, the values and the output.
    Rounding to the nearest is off by half a unit at most, and a long sum by as much as it may walk.
    """
    inputs = oracle.inputs
    every = inputs.query, oracle.weights, oracle.output, oracle.scores
    query, weights, output, scores = (t[..., rows, :] for t in every)
    query, key = query.square(), inputs.key.square()
    value = inputs.value.square().mean(-1, keepdim=True)  # only means over Ev are needed
    scale = inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
    squares = weights.square()
    moved = squares * (2 * scale**2 * (query @ key.mT) + scores.square())
    from_scores = moved @ value - 2 * (output * (moved @ inputs.value)).mean(-1, keepdim=True)
    size = output.square().mean(-1, keepdim=True)
    from_scores += size * moved.sum(-1, keepdim=True)
    sums = 2 * squares @ value + size
    product, total = oracle.product_eps(oracle.eps), oracle.sum_eps(oracle.eps)
    moves = product**2 * from_scores.clamp_min(0.0) + total**2 * sums
    error: Tensor = (moves + oracle.tiny**2).squeeze(-1)
    return error


def _cut(inputs: Inputs, item: int, rows: list[int]) -> Inputs:
    """One of the items, counted through, and some rows of it: ``(1, rows, E)``."""
    mask = inputs.attn_mask
    if mask is not None:
        shape = (*inputs.query.shape[:-1], inputs.key.shape[-2])
        mask = mask.broadcast_to(shape).flatten(0, -3)[item, rows].unsqueeze(0)
    query, key, value = (t.flatten(0, -3)[item] for t in (inputs.query, inputs.key, inputs.value))
    query, key, value = (t.unsqueeze(0) for t in (query[rows], key, value))
    return Inputs(query, key, value, attn_mask=mask, scale=inputs.scale)


def _ratio(errors: Tensor, budget: Tensor) -> float:
    """The largest error over the allowed error; infinite if either is not a finite number."""
    ratio = torch.where(errors == 0, 0.0, errors / budget)
    ratio = torch.where(torch.isfinite(errors + budget), ratio, math.inf)
    return float(ratio.max()) if ratio.numel() else 0.0


def _drawn(length: int, count: int, chance: random.Random) -> list[int]:
    """Some of the first numbers, all different; ``sample`` takes longer than the products do."""
    if count == length:
        return list(range(length))
    drawn: list[int] = np.random.default_rng(chance.getrandbits(128)).permutation(length).tolist()
    return drawn[:count]


def _chosen(
    inputs: Inputs, chance: random.Random, *, few: bool
) -> Iterator[tuple[Inputs, list[int], list[int]]]:
    """What is compared at a time, its items and their rows: all, or what there is time for.

    A few are the last row of an item, or some that are drawn, or both.
    """
    count, q_len = inputs.query.shape[:-2].numel(), inputs.query.shape[-2]
    if few:
        chosen = [q_len - 1, *(chance.randrange(q_len) for _ in range(2))]
        rows = sorted({*chosen[chance.randrange(2) :]})
        item = chance.randrange(count)
        yield _cut(inputs, item, rows), [item], rows
        return
    kv_len = max(1, inputs.key.shape[-2])
    if count * q_len * kv_len <= _PAIRS:
        yield inputs, list(range(count)), list(range(q_len))
        return
    for item in chance.sample(range(count), min(count, _ITEMS)):
        some = min(q_len, max(_ROWS, _PAIRS // _ITEMS // kv_len))
        rows = sorted({0, q_len - 1, *_drawn(q_len, some, chance)})
        part = _cut(inputs, item, rows)
        yield part, [item], rows
