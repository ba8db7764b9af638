"""Which call a callee takes: small calls in each layout, and what comes of them.

All sizes of a trial differ, so that a shape tells its axes. What a call shows is bound only if its
items know nothing of each other; two that fit in different ways refuse.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.styles import Argument, role_of
from attnbench_plugins.adapters.binding import Binding, Part, part_of
from attnbench_plugins.adapters.calls.frame import arranged
from attnbench_plugins.adapters.refusing import MIXES, Raised
from attnbench_plugins.adapters.trials.argument_values import (
    PREPARES,
    RESETS,
    likely_first,
    method_of,
    options_of,
)
from attnbench_plugins.adapters.trials.small_calls import (
    GRID,
    ITEMS,
    QUERIES,
    SIZES,
    WIDTH,
    Callee,
    Calls,
    close,
)

LAYOUTS = (
    ("BHLE", "BHSE"),
    ("BLHE", "BSHE"),
    ("BLE", "BSE"),
    ("LBE", "SBE"),
    ("BE", "BSE"),
    ("BE", "SBE"),
    ("B1E", "BSE"),
    ("1BE", "SBE"),
    ("1BE", "BSE"),
    ("BEL", "BES"),
)
"""Axes of query and key that are tried, the more general first."""

LAYER_LAYOUTS = {
    "BLE": "BSE",
    "LBE": "SBE",
    "BEL": "BES",
    **dict.fromkeys(("BEYX", "BYXE", "B11YXE", "LE"), "BSE"),
}
"""Axes of hidden states, and of a second sequence."""

_OUTPUTS = {
    "BHLE": ("BHLE", "BLHE"),
    "BLHE": ("BLHE", "BHLE"),
    "BLE": ("BLE", "LBE", "BEL"),
    "LBE": ("LBE", "BLE", "BEL"),
    "BEL": ("BEL", "BLE"),
}
_ONE = ("BE", "B1E", "1BE")
_PARTS = re.compile(r"values to unpack \(expected ([23])")
"""What is raised of a tensor in place of a tuple: the states of an LSTM, or keys and values."""


def axes_of(shape: Sequence[int], widths: Sequence[int]) -> str:
    """The axes of a shape by their sizes, ``?`` where a size is none of a trial."""
    letters = {size: letter for letter, size in SIZES.items()} | dict.fromkeys(widths, "E")
    return "".join(letters.get(size, "?") for size in shape)


def parts_of(result: Any, callee: Any) -> Iterator[tuple[Part, Tensor]]:
    """The tensors of a result and of a module after the call, and where they are."""
    if isinstance(result, Tensor):
        yield None, result
    elif isinstance(result, Mapping):
        yield from ((name, part) for name, part in result.items() if isinstance(part, Tensor))
    elif isinstance(result, tuple | list):
        yield from ((at, part) for at, part in enumerate(result) if isinstance(part, Tensor))
    elif hasattr(result, "__dict__"):
        yield from ((name, p) for name, p in vars(result).items() if isinstance(p, Tensor))
    for name, part in vars(callee).items() if isinstance(callee, nn.Module) else ():
        if isinstance(part, Tensor) and role_of(name, "result") == "weights":
            yield f".{name}", part


def _read(result: Any, callee: Any, calls: Calls) -> dict[str, tuple[Part, str]]:
    """Where the output, the weights and the scores are in what a call gives."""
    layout, widths = calls.binding.layout, calls.callee.sides
    found: dict[str, tuple[Part, str]] = {}
    for where, part in parts_of(result, callee):
        if not part.is_floating_point() or not part.dim():
            continue
        axes = axes_of(part.shape, widths)
        if axes in _OUTPUTS.get(layout, _ONE) and "output" not in found:
            found["output"] = (where, axes)
        elif _is_of_keys(axes, layout):
            over = [letter for letter in "SL" if letter in axes]  # over queries, as a check says
            sums = [part.sum(axes.index(letter)) for letter in over]
            are_one = any(torch.allclose(s, torch.ones(()).to(s), atol=1e-3) for s in sums)
            kind = "weights" if are_one and bool((part >= 0).all()) else "scores"
            found.setdefault(kind, (where, axes))
    return found


def _read_layer(result: Any, calls: Calls, widens: bool) -> dict[str, tuple[Part, str]]:
    """Where a layer's output is: of the shape of the hidden states, or one state for all tokens.

    Of features there may be some times as many, or any number if it widens, as of logits.
    """
    layout, width = calls.binding.layout, calls.callee.width
    hidden = calls.tensors()[0]
    hidden = hidden if "B" in layout else hidden[:1]
    shape = [*arranged(hidden, "BLE" if hidden.dim() == 3 else "BYXE", layout).shape]
    ways = {layout: shape}
    if layout[0] == "B":
        ways |= {"B1E": [ITEMS, 1, width], "BE": [ITEMS, width]}
    parts = [(w, p) for w, p in parts_of(result, None) if p.is_floating_point() and p.dim()]
    for axes, wanted in ways.items():
        for where, part in parts:
            is_wide = axes[-1] == "E" and (widens or part.shape[-1] % width == 0)
            if ([*part.shape[:-1], width] if is_wide else [*part.shape]) == wanted:
                return {"output": (where, axes)}
    return {}


def _is_of_keys(axes: str, layout: str) -> bool:
    plain = [letter for letter in axes if letter != "1"]
    wanted = {"B", "S", *("L" if "L" in layout else ""), *("H" if "H" in layout else "")}
    if "G" in plain:
        return False
    return len(set(plain)) == len(plain) and wanted <= {*plain} <= wanted | {"H"}


def trials(
    callee: Callee,
    arguments: Sequence[Argument],
    mains: Mapping[str, str],
    raised: list[Raised],
    layouts: Sequence[tuple[str, str]] = LAYOUTS,
) -> tuple[list[Binding], list[Binding]]:
    """The bindings that give an output, weights or scores.

    Args:
        callee: what is called.
        arguments: its arguments.
        mains: the roles of those that get query, key, value or memory.
        raised: what other calls raised, to which more is added.
        layouts: axes of query and key that are tried.

    Returns:
        The bindings that keep items apart, and those that do not.
    """
    for square in (False, True):
        apart: list[Binding] = []
        mixing: list[Binding] = []
        for layout, memory in layouts:
            if (square and "L" not in layout) or (apart and layout == "BEL"):
                continue  # features before tokens are unusual
            way = {"layout": layout, "memory": memory, "square": square}
            binding = tried(callee, arguments, mains, way)
            if isinstance(binding, str) and (parts := _PARTS.search(binding)):  # as of an LSTM
                ways = ({**way, "paired": {name: int(parts[1])}} for name in mains)
                paired = (tried(callee, arguments, mains, one) for one in ways)
                binding = next((b for b in paired if not isinstance(b, str)), binding)
            if isinstance(binding, str):
                raised += [] if square else [binding.of(f"{layout}, {memory}")]
            else:
                (mixing if _mixing(callee, binding) else apart).append(binding)
        if apart or (mixing and not square):  # some shapes are taken for others where L is S
            return apart, mixing
    return [], []


def _mixing(callee: Callee, binding: Binding) -> bool:
    return "B" in binding.layout and Calls(callee, binding).mixes()


def layer_trials(
    callee: Callee, arguments: Sequence[Argument], mains: Mapping[str, str], raised: list[Raised]
) -> Binding | None:
    """The first layout that keeps items apart, or else that runs; at a fixed length at last.

    A number of tokens that a module insists on is one that its errors name.
    """
    mixing = None
    plain: list[dict[str, Any]] = [{"layout": layout} for layout in LAYER_LAYOUTS]
    angles = any(a.role in _ANGLES and not a.required for a in arguments)
    for kind in ("", *(["angles"] if angles else []), "tokens"):
        ways = plain if kind == "" else [{"layout": layout} for layout in ("BLE", "LE")]
        if kind == "tokens":  # the errors of what was tried name it, or a table has as many rows
            ways = _fixed(plain, raised, callee)
        for way in ways:
            memory = LAYER_LAYOUTS[way["layout"]] if "memory" in mains.values() else ""
            if memory and "Y" in way["layout"]:
                continue
            own = {**way, "memory": memory}
            binding = tried(callee, arguments, mains, own, angles=kind == "angles")
            if isinstance(binding, str):
                raised += [] if kind else [binding.of(way["layout"])]
            elif not _mixing(callee, binding):  # in other layouts only where tokens are apart, too
                return binding
            elif "Y" in way["layout"] or _is_turned(callee, binding):  # axes may mean much else
                raised.append(Raised(MIXES).of(way["layout"]))
            else:
                mixing = mixing or binding
        if mixing is not None:
            break
    return mixing


def _is_turned(callee: Callee, binding: Binding) -> bool:
    """Whether no token reaches another, as where those are that are taken for items."""
    seen = Calls(callee, binding).reach()
    return seen is not None and not bool((seen.triu(1) | seen.tril(-1)).any())


def _fixed(
    ways: Sequence[Mapping[str, Any]], raised: Sequence[str], callee: Callee
) -> list[dict[str, Any]]:
    """The layouts at numbers of tokens that errors name or tables have, their roots and squares,
    and one less.
    """
    named = Counter(
        int(n) for text in raised for n in re.findall(r"(?<![\w.:])\d{1,4}(?!\w)", text)
    )
    if isinstance(made := callee.at(), nn.Module):
        for tensor in itertools.chain(made.parameters(), made.buffers()):
            named.update(size for size in tensor.shape if size % callee.width)
    known = {*SIZES.values(), WIDTH, math.prod(GRID), *GRID}
    likely = [n for n, _ in named.most_common(12) if n > 1]
    counts = [n for n in likely if n not in known] + [n - 1 for n in likely if n - 1 not in known]
    counts += [n * n for n in likely if n * n <= _MOST]
    counts += [math.isqrt(n) for n in named if math.isqrt(n) ** 2 == n]  # of a table of pairs
    return [
        {**way, "tokens": count}
        for count in dict.fromkeys(n for n in counts if QUERIES < n <= _MOST)
        if count != callee.width
        for way in ways
        if way["layout"] != "LE" and ("Y" not in way["layout"] or math.isqrt(count) ** 2 == count)
    ]


_MOST, _MOST_CALLS = 256, 10_000
"""Most tokens of a fixed number, and most calls in a search."""


def tried(
    callee: Callee,
    arguments: Sequence[Argument],
    mains: Mapping[str, str],
    way: Mapping[str, Any],
    *,
    angles: bool = False,
    widens: bool = False,
) -> Binding | Raised:
    """The binding of the first call in this layout that gives anything, or what was raised.

    Args:
        callee: what is called.
        arguments: its arguments.
        mains: the roles of those that get query, key, value, memory or hidden states.
        way: fields of the binding.
        angles: whether a layer gets angles and masks that its signature does not need, too.
        widens: whether its output may have any number of features.
    """
    if callee.spent > _MOST_CALLS:
        left = Raised("not tried after so many others")
        left.reached = 0
        return left
    is_layer, pair = "hidden" in mains.values(), "memory" in mains.values()
    asked = _ANGLES if angles else () if is_layer else ("return_weights",)
    rest = [a for a in arguments if a.name not in mains and (a.required or a.role in asked)]
    made = callee.at()
    taken = {**mains, **{a.name: a.role or "" for a in rest}}
    bare = Binding(
        shape="layer" if is_layer else "memory" if pair else "attention",
        roles={a.name: taken[a.name] for a in arguments if a.name in taken},
        left=tuple(a.name for a in arguments if a.name not in taken),
        reset=None if is_layer else method_of(made, RESETS, 0),
        prepare=None if is_layer else method_of(made, PREPARES, 1),
        dense=True,
        **way,
    )
    error, hiding = Raised(""), None
    for more in itertools.islice(
        likely_first([options_of(a, bare, made) for a in rest]),
        400 if is_layer and not bare.tokens else 48,
    ):
        binding = bare.replace(values={a.name: v for a, v in zip(rest, more, strict=True)})
        calls = Calls(callee, binding)
        result, called = calls.result(calls.tensors(1 if binding.one_query else QUERIES))
        if called is None:
            if not error or calls.raised.reached > error.reached:
                error = calls.raised
            continue
        parts = _read_layer(result, calls, widens) if is_layer else _read(result, called, calls)
        if {"output", "scores"} == {*parts} and _pools_by(calls, parts):
            parts["weights"] = parts["scores"]  # though they do not sum to one, as a check says
        found = _placed(binding, parts)
        if found is None or not _is_finite(Calls(callee, found), result, called):
            continue
        fewer = Calls(callee, found)
        if found.tokens or not is_layer or fewer(fewer.tensors(QUERIES - 1)) is not None:
            if not rest or not is_layer or bool((output := fewer()) is None or output.any()):
                return found
            hiding = hiding or found  # a mask may hide all, of which nothing is left
        error = fewer.raised
    return hiding or error or Raised("it gives no tensor of a query's shape or of one number a key")


def _is_finite(calls: Calls, result: Any, called: Any) -> bool:
    """Whether the output is, or without one the weights or scores: a mask may hide all keys."""
    where = calls.binding.output or calls.binding.weights
    if not calls.is_layer:
        return where is None or bool(part_of(result, where[0], called).isfinite().all())
    output = calls()
    return output is not None and bool(output.isfinite().all())


def _pools_by(calls: Calls, parts: Mapping[str, tuple[Part, str]]) -> bool:
    """Whether the output is the numbers of the keys times values or memory."""
    pooled = calls.replace(output=parts["output"], weights=parts["scores"], pools=False)
    query, key, value = pooled.tensors(1 if calls.binding.one_query else QUERIES)
    value = key if calls.binding.shape == "memory" else value
    both = pooled.both([query, key, value])
    return both is not None and close(both[0], both[1] @ value)


def _placed(binding: Binding, parts: Mapping[str, tuple[Part, str]]) -> Binding | None:
    """A binding with where its output and its weights are; ``None`` if there is neither."""
    if not parts:
        return None
    if not {"output", "weights"} & {*parts}:
        return binding.replace(shape="scores", weights=parts["scores"])
    pools = binding.shape != "memory" or "weights" in parts
    return binding.replace(output=parts.get("output"), weights=parts.get("weights"), pools=pools)


_ANGLES = ("rotary", "cos", "sin", "positions", "mask")
"""Roles that an attention may need, though its signature says otherwise."""


def folds(calls: Calls) -> int:
    """How many times as many features as the hidden states an output has."""
    where, axes = calls.binding.output or (None, calls.binding.layout)
    result, called = calls.result(calls.tensors())
    if called is None:
        return 1
    output: Tensor = part_of(result, where, called)
    return output.shape[axes.index("E")] // calls.callee.width
