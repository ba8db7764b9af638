"""What the judge's own calls are drawn from: axes, and the levels of each.

A judgement has a call of every pair of levels that may come together, so that what a kernel does
wrong at one level, or at two together, never depends on chance. Numbers within a level, values and
the order are drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.judging.covering import Row
from attnbench.specs.conventions import Conventions

_LENGTHS = (
    *((1, 1), (2, 15), (16, 63), (64, 128)),
    *((129, 512), (513, 1100), (1101, 4096), (4097, 8192)),
)
_MASKS = {
    "no mask": "",
    "causal, L = S": "is_causal",
    "causal, L < S": "is_causal",
    "causal, L > S": "is_causal",
    "mask (B, H, L, S)": "boolean",
    "mask (B, 1, L, S)": "boolean",
    "mask (B, 1, 1, S)": "boolean",
    "mask (H, L, S)": "boolean",
    "mask (L, S)": "boolean",
    "mask with a stride of 0": "boolean",
    "mask that hides whole tiles": "boolean",
    "floating mask with -inf": "floating",
    "floating mask, finite": "floating",
    "floating mask, rows far below 0": "floating",
}
"""Masks, and what a callee takes for them: a keyword, or a form of ``attn_mask``."""


def _range(name: str, least: int, most: int) -> str:
    return f"{name} = {least}" if least == most else f"{name} of {least} to {most}"


def _numbers(name: str, *groups: Sequence[int]) -> dict[str, tuple[int, ...]]:
    return {_range(name, group[0], group[-1]): tuple(group) for group in groups}


AXES: Mapping[str, Mapping[str, Any]] = {
    "S": {_range("S", *ends): ends for ends in _LENGTHS},
    "L": {**{_range("L", *ends): ends for ends in _LENGTHS}, "L = S": None},
    "mask": _MASKS,
    "layout": {
        "contiguous": "contiguous",
        "the other layout of heads": "heads",
        "features apart": "strided",
        "rows apart": "transposed",
        "slices of larger tensors": "offset",
        "one item for all of the batch": "expanded",
        "views of one packed tensor": "packed",
        "pointers that are not aligned": "misaligned",
        "one tensor is query, key and value": "alone",
        "one tensor is key and value": "shared",
    },
    "heads of keys": {"a head of keys for each": 0, "one head of keys": 1, "grouped heads": 2},
    "H": _numbers("H", (1,), (2,), range(3, 7), (7,), (8,), range(9, 32), (32,), range(33, 65)),
    "E": _numbers(
        "E",
        *(range(2, 8), (8, 16), (24, 32, 40), (64,), range(65, 127), (128,)),
        *(range(129, 257), range(257, 513), range(513, 1025)),
    ),
    "Ev": {"Ev = E": 0, "Ev < E": -1, "Ev > E": 1},
    "B": _numbers("B", (1,), (2,), range(3, 7)),
    "scale": {
        "no scale": None,
        "scale of 0": (0.0, 0.0),
        "scale below 0.04": (0.01, 0.04),
        "scale from 0.04 to 2": (0.04, 2.0),
        "scale above 2": (2.0, 20.0),
        "negative scale": (-0.4, -0.1),
    },
    "dtype": {name: name for name in ("float32", "bfloat16", "float16")},
    "values": {
        "normal": "normal",
        "scores where softmax saturates": "saturating",
        "scores where softmax is flat": "flat",
        "keys that grow": "growing",
        "keys that shrink": "shrinking",
        "keys far from 0": "far_keys",
        "equal keys": "equal_keys",
        "values far from 0": "far_values",
        "values of 1000": "large_values",
    },
}
"""The levels of each axis, by name, and what each stands for."""

_CAUSAL = tuple(name for name in _MASKS if name.startswith("causal"))


def _but(axis: str, *levels: str) -> set[str]:
    return set(AXES[axis]) - set(levels)


_WITH_ONE_TENSOR: Mapping[str, set[str]] = {
    "L": {"L = S"},
    "Ev": {"Ev = E"},
    "heads of keys": {"a head of keys for each"},
}
_NEEDS: Mapping[str, Mapping[str, set[str]]] = {
    "views of one packed tensor": _WITH_ONE_TENSOR,
    "one tensor is query, key and value": {
        **_WITH_ONE_TENSOR,
        "values": {"normal", "scores where softmax is flat"},
    },
    "one tensor is key and value": {
        "Ev": {"Ev = E"},
        "values": _but("values", "equal keys", "values far from 0", "values of 1000"),
    },
    "one item for all of the batch": {"B": _but("B", "B = 1")},
    "causal, L = S": {"L": {"L = S"}},
    "causal, L < S": {"L": _but("L", "L = S")},
    "causal, L > S": {"L": _but("L", "L = S")},
    # torch's own function gives NaN where these come together
    "scale of 0": {"mask": _but("mask", *_CAUSAL, "floating mask with -inf")},
    "negative scale": {
        "mask": _but("mask", *_CAUSAL),
        "values": {"normal", "scores where softmax is flat", "values far from 0"},
    },
    "one head of keys": {"H": _but("H", "H = 1")},
    "grouped heads": {"H": _but("H", "H = 1", "H = 2", "H = 7")},
}
"""What each level needs of other axes."""


@dataclass(frozen=True)
class CallSizes:
    """The sizes of a call: B, H, heads of keys and values, L, S, E and Ev."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    size: int
    value_size: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key."""
        return self.batch * self.heads * self.q_len * self.kv_len

    @property
    def elements(self) -> int:
        """Elements of query, key, value and output, with a head of keys for each of the query."""
        lengths = self.q_len + self.kv_len
        return self.batch * self.heads * lengths * (self.size + self.value_size)


@dataclass(frozen=True)
class Most:
    """The most pairs and elements of a call."""

    pairs: int
    elements: int

    def allow(self, sizes: CallSizes) -> bool:
        """Whether a call is no larger."""
        return sizes.pairs <= self.pairs and sizes.elements <= self.elements

    def fits(self, row: Row) -> bool:
        """Whether calls of a row, or of a part of one, may be made and are small enough."""
        needs = (_NEEDS[level] for level in row.values() if level in _NEEDS)
        for need in needs:
            if any(axis in row and row[axis] not in levels for axis, levels in need.items()):
                return False
        sizes = _sizes(row, min, min)
        return sizes is not None and self.allow(sizes)


FEW, MANY = Most(2**16, 2**17), Most(9 * 2**18, 2**21)
"""Sizes of most calls, and of those whose two levels need more."""


def axes_for(
    names: Collection[str], conventions: Conventions, *, grouped: bool, style: str
) -> Mapping[str, list[str]]:
    """The levels that a callee takes.

    Args:
        names: of the keywords that it takes, by meaning.
        conventions: which it follows.
        grouped: whether it takes grouped heads.
        style: style of call; in ``flash``, Ev is E.
    """
    masks = conventions.masks if "attn_mask" in names else ()
    ends = {"top_left": {"L < S", "L > S"}, "bottom_right": {"L < S"}}
    aligned = ends.get(conventions.causal, set()) | {"L = S", "mask"}
    if conventions.empty_rows == "zeros" and conventions.causal == "bottom_right":
        aligned |= {"L > S"}
    kept = {axis: list(levels) for axis, levels in AXES.items()}
    kept["mask"] = [
        name
        for name, form in _MASKS.items()
        if form in ("", *masks) or (form in names and name.rpartition(", ")[2] in aligned)
    ]
    lacks = {
        "heads of keys": not grouped,
        "scale": "scale" not in names,
        "Ev": style == "flash",
    }
    return {axis: kept[axis][:1] if lacks.get(axis) else kept[axis] for axis in kept}


def drawn_sizes(row: Row, chance: random.Random) -> CallSizes:
    """Sizes of a whole row that nobody could know; small ones where the row allows them."""
    for most, share in ((FEW, 1.0), (FEW, 0.5), (FEW, 0.2), (FEW, 0.0), (MANY, 0.15), (MANY, 0.05)):

        def choose(options: Sequence[int], share: float = share) -> int:
            return chance.choice(options[: max(1, math.ceil(len(options) * share))])

        def between(least: int, last: int, share: float = share) -> int:
            power: float = (last / least) ** (share * chance.random())
            return round(least * power)

        sizes = _sizes(row, choose, between)
        if sizes is not None and most.allow(sizes):
            return sizes
    sizes = _sizes(row, min, min)
    assert sizes is not None, row
    return sizes


def _sizes(
    row: Row, choose: Callable[[Sequence[int]], int], between: Callable[[int, int], int]
) -> CallSizes | None:
    """Sizes of a row; ``None`` if there are none. What a part of a row leaves open is least."""
    level = {axis: levels[row.get(axis, next(iter(levels)))] for axis, levels in AXES.items()}
    lengths = _lengths(
        level["L"], level["S"], row["mask"] if {"L", "S", "mask"} <= set(row) else "", between
    )
    if lengths is None:
        return None
    groups, options = level["heads of keys"], level["H"]
    if groups == 2:
        options = [count for count in options if _divisors(count)] or [4]
    heads = choose(options)
    kv_heads = choose(((heads,), (1,), _divisors(heads))[groups])
    size = choose(level["E"])
    others = {0: (size,), -1: range(1, size), 1: range(size + 1, 2 * size + 1)}
    value_size = choose(others[level["Ev"]]) if "Ev" in row else 1
    return CallSizes(choose(level["B"]), heads, kv_heads, *lengths, size, value_size)


def _divisors(count: int) -> list[int]:
    return [part for part in range(2, count) if count % part == 0]


def _lengths(
    queries: tuple[int, int] | None,
    keys: tuple[int, int],
    mask: str,
    between: Callable[[int, int], int],
) -> tuple[int, int] | None:
    """L and S, in the order that a causal mask names."""
    if queries is None:
        kv_len = between(*keys)
        return kv_len, kv_len
    (q_least, q_most), (kv_least, kv_most) = queries, keys
    if mask.endswith("L < S"):
        kv_least = max(kv_least, q_least + 1)
    if mask.endswith("L > S"):
        kv_most = min(kv_most, q_most - 1)
    if kv_least > kv_most:
        return None
    kv_len = between(kv_least, kv_most)
    if mask.endswith("L < S"):
        q_most = min(q_most, kv_len - 1)
    if mask.endswith("L > S"):
        q_least = max(q_least, kv_len + 1)
    return between(q_least, q_most), kv_len
