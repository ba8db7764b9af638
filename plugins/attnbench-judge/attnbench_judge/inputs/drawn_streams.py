"""The judge's own calls: a stream of inputs for a row of levels."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench import Case
from attnbench.testing import lay_out, make_inputs
from attnbench_judge.inputs.axes import AXES, CallSizes, drawn_sizes
from attnbench_judge.inputs.covering import Row
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream

_TILES = (8, 16, 32, 64)
_LONG = 128
"""More keys than this are many."""
_LAYOUTS = ("layout of query", "layout of key", "layout of value")
_TOLD = (
    *("mask", "shape of mask", "tensors", *_LAYOUTS),
    *("heads of keys", "scale", "scores", "values"),
)
_LEAST = {"float16": -(2.0**15)}
"""Least number of a floating mask, where the dtype could not hold its sum with a score below 0."""


def keywords_of_case(case: Case, taken: Mapping[str, str], style: str) -> dict[str, Any] | None:
    """The keyword arguments, by meaning, for the mask of a case; ``None`` if it takes no such mask.

    Args:
        case: its mask is a key of :data:`attnbench.cases.case.MASKS`.
        taken: what the callee takes, to its own name of it.
        style: style of call; in ``sdpa``, causality ends at the top left.
    """
    inputs = make_inputs(case)
    as_flag = style == "flash" or case.q_len == case.kv_len
    if case.mask == "causal" and "is_causal" in taken and as_flag:
        return {"is_causal": True}
    mask = inputs.mask.as_tensor()
    if mask is None:
        return {}
    if "attn_mask" not in taken:
        return None
    while mask.dim() < 4:
        mask = mask.unsqueeze(-3)
    return {"attn_mask": mask}


class Deck:
    """Draws one of several kinds, each as often in calls of few keys, and in those of many.

    Args:
        chance: draws the order.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.many = chance, False
        self._left: dict[str, list[Any]] = {}

    def one_of(self, kinds: Any, place: str = "") -> Any:
        """What a level stands for; of a list of kinds, each comes once before any comes again.

        Args:
            kinds: one, or a list.
            place: what it is for, if there are equal lists for others.
        """
        if not isinstance(kinds, list):
            return kinds
        left = self._left.setdefault(f"{self.many}{place}{kinds}", [])
        if not left:
            left += self.chance.sample(kinds, len(kinds))
        return left.pop()


def stream_of(row: Row, style: str, causal: str, deck: Deck, secret: Secret) -> Stream:
    """Inputs of a whole row of levels.

    Args:
        row: a level for each axis of :data:`attnbench_judge.inputs.axes.AXES`.
        style: style of call.
        causal: where causality ends.
        deck, secret: draw sizes and kinds, and values.
    """
    sizes = drawn_sizes(row, deck.chance)
    deck.many = sizes.kv_len > _LONG
    level = {axis: AXES[axis][name] for axis, name in row.items()}
    keywords: dict[str, Any] = {}
    if "keyword" in level["mask"]:
        keywords[level["mask"]["keyword"]] = True
    elif level["mask"]:
        mask = level["mask"], level["shape of mask"]
        keywords["attn_mask"] = _mask(*mask, sizes, level["dtype"], deck, secret.generator())
    if level["scale"]:
        keywords["scale"] = _scale(level["scale"], deck.chance)
    if sizes.kv_heads != sizes.heads and style == "sdpa":
        keywords["enable_gqa"] = True
    case = Case(
        (sizes.batch, sizes.heads),
        *(sizes.q_len, sizes.kv_len, sizes.size, sizes.size, sizes.value_size),
        level["dtype"],
        mask="causal" if "is_causal" in keywords else "none",
    )
    return Stream(
        case,
        keywords,
        style,
        secret,
        None if sizes.kv_heads == sizes.heads else sizes.kv_heads,
        causal=causal,
        layouts=[deck.one_of(level[axis], axis) for axis in _LAYOUTS],
        places=deck.one_of(level["tensors"]["places"]),
        view=level["tensors"].get("view", ""),
        scores=deck.one_of(level["scores"]),
        values=level["values"],
        name=", ".join(row[axis] for axis in _TOLD if row[axis] != next(iter(AXES[axis]))),
    )


def _scale(ends: list[float], chance: random.Random) -> float:
    """A number of a range, by its logarithm; both ends have the same sign, or are 0."""
    if not all(ends):
        return 0.0
    low, high = (math.log(abs(end)) for end in ends)
    return math.copysign(math.exp(chance.uniform(low, high)), ends[0])


def _mask(
    level: Mapping[str, Any],
    shape: Mapping[str, Any],
    sizes: CallSizes,
    dtype: str,
    deck: Deck,
    generator: torch.Generator,
) -> Tensor:
    """A mask in which every query has a key, of the levels of its kind and of its shape."""
    whole = (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
    known = dict(zip("BHLS", whole, strict=True)) | {"1": 1}
    stored = tuple(known[size] for size in deck.one_of(shape["sizes"]))
    kind = deck.one_of(level["kinds"])
    if level["form"] == "floating":
        mask = _floating(kind, stored, dtype, deck, generator)
    else:
        mask = _pattern(kind, generator, deck.chance, *stored)
    layout = shape.get("layout", "contiguous")
    return mask.expand(whole) if layout == "expanded" else lay_out(mask, layout)


def _floating(
    kind: str, shape: tuple[int, ...], dtype: str, deck: Deck, generator: torch.Generator
) -> Tensor:
    """A floating mask: numbers, a bias by distance, whole rows far below 0, or with hidden keys."""
    narrow = getattr(torch, dtype)
    mask = torch.randn(shape, generator=generator) * 10 ** deck.chance.uniform(-3.0, 2.0)
    if kind == "distances":
        apart = (torch.arange(shape[-1]) - _last_keys(*shape[-2:])).abs()  # key from query
        mask = apart.expand(shape) * -(10 ** deck.chance.uniform(-2.0, 0.0))
    elif kind == "floors":
        least = _LEAST.get(dtype, torch.finfo(narrow).min)
        mask = (mask + _floors(generator, shape[-2])).clamp_min(least)
    elif kind != "numbers":
        allowed = _pattern(kind, generator, deck.chance, *shape)
        mask = (mask * deck.one_of([0.0, 1.0])).masked_fill(~allowed, -math.inf)
        mask = mask.clamp_min(deck.one_of([-math.inf, torch.finfo(narrow).min], "least"))
    return mask.to(narrow)


def _open(generator: torch.Generator, tile: int, *shape: int) -> Tensor:
    """A boolean mask that leaves some keys, at least one a query.

    Squares of ``tile`` queries and keys are left or hidden together.
    """
    lead, pair = shape[:-2], [-(-size // tile) for size in shape[-2:]]
    allowed = torch.rand(*lead, *pair, generator=generator) < 0.6
    keep = torch.randint(pair[1], (*lead, pair[0], 1), generator=generator)
    allowed = allowed.scatter(-1, keep, True)
    if tile == 1:
        return allowed
    wide = allowed.repeat_interleave(tile, -2).repeat_interleave(tile, -1)
    return wide[..., : shape[-2], : shape[-1]].contiguous()


def _pattern(kind: str, generator: torch.Generator, chance: random.Random, *shape: int) -> Tensor:
    """A boolean mask in which every query has a key: random, or of a kind that models have."""
    keys = shape[-1]
    if kind == "causality":
        return torch.ones(shape, dtype=torch.bool).tril(max(0, keys - shape[-2]))
    if kind in ("few", "none"):  # hides one key of each query, or none
        hidden = torch.randint(keys, (*shape[:-1], 1), generator=generator)
        every = torch.ones(shape, dtype=torch.bool)
        return every if kind == "none" or keys == 1 else every.scatter(-1, hidden, False)
    if kind in ("any", "tiles"):
        return _open(generator, chance.choice(_TILES) if kind == "tiles" else 1, *shape)
    size, slots = chance.randint(1, keys), torch.arange(keys)
    if kind == "lengths":
        return slots < torch.randint(1, keys + 1, (*shape[:-2], 1, 1), generator=generator).expand(
            *shape[:-1], 1
        )
    last = _last_keys(*shape[-2:])
    near = (
        (slots <= last) & (slots > last - size)
        if kind == "window"
        else slots // size == last // size
    )
    return near.expand(shape)


def _last_keys(rows: int, keys: int) -> Tensor:
    """``(rows, 1)``: the key that stands where a query does; the last query has the last key."""
    return (torch.arange(rows) + keys - rows).clamp_min(0).unsqueeze(-1)


def _floors(generator: torch.Generator, rows: int) -> Tensor:
    """``(rows, 1)``: what whole rows of padding get: -10 to -300000, or the least number."""
    far = -(10 ** (1 + 4.5 * torch.rand(rows, 1, generator=generator)))
    kinds = (torch.arange(rows) + int(torch.randint(3, (), generator=generator))) % 3
    least = torch.full_like(far, torch.finfo(torch.float32).min)
    places = kinds.unsqueeze(-1)
    return torch.where(places == 0, 0.0, torch.where(places == 1, far, least))
