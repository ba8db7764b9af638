"""What is tried for the arguments that a trial call gives beside its tensors."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from attnbench.styles import Argument, role_of
from attnbench_plugins.adapters.binding import Binding, Fill, Through
from attnbench_plugins.adapters.calls.layer_call import tables_of

_RELATIVE = ("1RE", "R1E", "RE")
"""Axes of what says how far apart two tokens are."""
MASK_AXES = ("BLS", "BHLS", "B1LS", "LS", "BS", "B1S", "B11S", "SB", "BS1")


def likely_first(options: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """The ways to take one of each, the first of most before the last of any."""
    places = itertools.product(*[range(len(each)) for each in options])
    for chosen in sorted(itertools.islice(places, 20_000), key=sum):
        yield tuple(each[place] for each, place in zip(options, chosen, strict=True))


def method_of(callee: Any, pattern: re.Pattern[str], needs: int) -> str | None:
    """The only method of such a name that has to be given so many arguments, if there is one."""
    found = []
    for name in filter(pattern.match, dir(type(callee))):
        with contextlib.suppress(TypeError, ValueError):  # it is none, or nothing tells its own
            parameters = inspect.signature(getattr(callee, name)).parameters.values()
            if sum(each.default is each.empty for each in parameters) == needs:
                found.append(name)
    return found[0] if len(found) == 1 else None


RESETS = re.compile(r"(?:reset|clear)(?:_(?:mem|memory|states?|attention|cache))?$")
PREPARES = re.compile(
    r"(?:compute|precompute|init|set|process)_(?:\w*keys?|\w*memory|states?|attention)$"
)
_OF_MEMORY = re.compile(r"mem|key|input|enc|source|context|annot")
"""Names of submodules that may project a memory beforehand."""
_CONSTANTS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("causal", "use_cache", "flag", "gqa"), (False,)),
    **dict.fromkeys(("head_dim", "width"), (Fill("", counts="E", listed=True), None)),
    "scale": (0.25, None),
    "step": (0, None),
    "dropout": (0.0, None),
    "previous_weights": tuple(Fill(axes) for axes in ("BS", "B2S", "B1S", "GS", "BS1")),
    "coverage": tuple(Fill(axes, 0.25) for axes in ("BS", "B1S", "GS", "BS1")),
}
"""What is tried for an argument of a role in every layout."""


def options_of(argument: Argument, binding: Binding, callee: Any) -> Sequence[Any]:
    """Values to try for an argument that a call needs."""
    role = argument.role or role_of(argument.name, "constructor", exact=True) or ""
    is_layer = binding.shape == "layer"
    if argument.given:
        return argument.given
    if role in ("mask", "memory_mask", "padding", "memory_padding"):
        axes = [each for each in MASK_AXES if is_layer or "L" in binding.layout or "L" not in each]
        kinds = ((1.0, True), (0.0, True), (1.0, False), (0.0, False))
        return [None, *(Fill(each, *kind) for each in axes for kind in kinds)]
    if role == "lengths" and not is_layer:
        return [Fill("B", counts="S"), Fill("B", counts="S", listed=True), None]
    if role == "processed_keys" and isinstance(callee, nn.Module) and not is_layer:
        places = [name for name, _ in callee.named_children() if _OF_MEMORY.search(name)]
        return [*map(Through, places), None]
    if role == "return_weights":
        return [not is_layer]
    if role in ("rotary", "cos", "sin", "embedded_positions") and is_layer:
        function = callee.forward if isinstance(callee, nn.Module) else callee
        part = {"cos": 0, "sin": 1}.get(role)
        tables = [t for t in tables_of(function, callee) if part in (None, t.part)]
        return [*tables, *(Fill(axes, 0.5) for axes in ("BLE", "LBE", *_RELATIVE)), None]
    if role == "embedded_positions":
        return [*(Fill(axes, 0.5) for axes in (binding.layout, binding.memory, *_RELATIVE)), None]
    if role == "positions" and is_layer:
        return ["BL", "L"]
    if role == "cache" and is_layer:
        return [None, *((Fill(axes, 0.0),) * 2 for axes in ("BSHD", "BHSD"))]
    return _CONSTANTS.get(role, (None,))
