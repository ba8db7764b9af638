"""Where two ways part, or where one loses more than rounding: its submodule and operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.answers.tracing import Operation, Trace, joined, traced
from attnbench.answers.way import UNITS, Tensors, Way, equal, short, widened
from attnbench.oracle.operations import RoundedOperations
from attnbench.oracle.references import NormEpsilon

_SAME = 1e-9
"""Relative difference of equal values in float64, whatever the order of sums."""


def _close(one: Tensor, other: Tensor) -> bool:
    size = float(one.abs().nan_to_num(0.0, 0.0, 0.0).max()) if one.numel() else 0.0
    return equal(one, other) or bool(((one - other).abs() <= _SAME * max(size, 1e-300)).all())


def parting_of_both(pair: tuple[Way, Way], inputs: Tensors) -> dict[str, Any]:
    """Where two float64 runs part: the first submodule, and each side's first own operation."""
    traces = []
    for way in pair:
        module, given = widened(way, inputs)
        with torch.no_grad(), NormEpsilon(way.dtype), traced(module) as trace:
            way.call(module, given)
        traces.append(trace)
    module_name = None
    for name, tensors in traces[0].modules.items():
        if name not in traces[1].modules:
            continue
        shape = _whole(tensors, traces[1].modules[name])
        one, other = (joined(t, shape) for t in (tensors, traces[1].modules[name]))
        if one is not None and other is not None and not _close(one, other):
            module_name = name
            break
    found = [
        _first_own(*order, way.name)
        for order, way in zip(((traces[0], traces[1]), (traces[1], traces[0])), pair, strict=True)
    ]
    return {"parted_in": module_name, "operations": tuple(text for text in found if text)}


def _whole(one: list[Tensor], other: list[Tensor]) -> torch.Size:
    """The shape of one whole output: that of the side with fewer calls."""
    return (one if len(one) <= len(other) else other)[0].shape


def _first_own(mine: Trace, theirs: Trace, name: str) -> str:
    """The first operation whose result the other side does not have, whole or in a chunk."""
    known: dict[torch.Size, list[Tensor]] = {}
    for operation in theirs.operations:
        known.setdefault(operation.output.shape, []).append(operation.output)
    for operation in mine.operations:
        same = known.get(operation.output.shape, [])
        if same and not any(_close(operation.output, other) for other in same):
            return _in_words(name, operation)
    return ""


def _in_words(name: str, operation: Operation) -> str:
    where = f" at {operation.where}" if operation.where else ""
    return f"{name}: {operation.name} in {short(operation.output.dtype)}{where}"


def loss_of_one(way: Way, inputs: Tensors) -> dict[str, Any]:
    """Where a way loses more than rounding: its first submodule and operation that is off."""
    with torch.no_grad(), traced(way.module) as narrow:
        given = [t.to(way.dtype) if t.is_floating_point() else t for t in inputs]
        way.call(way.module, given)
    runs = []
    for mode in (None, RoundedOperations(torch.finfo(way.dtype).eps)):
        module, given = widened(way, inputs)
        with torch.no_grad(), NormEpsilon(way.dtype), traced(module) as trace:
            if mode is None:
                way.call(module, given)
            else:
                with mode:
                    way.call(module, given)
        runs.append(trace)
    wide, moved = runs
    eps = torch.finfo(way.dtype).eps

    def lost(own: Tensor, right: Tensor, near: Tensor) -> bool:
        if not own.shape == right.shape == near.shape or not own.numel():
            return False
        size = float(right.abs().nan_to_num(0.0, 0.0, 0.0).max())
        unit = float((near - right).abs().nan_to_num(0.0).max()) + eps * size
        return not float((own.double() - right).abs().max()) <= 4 * UNITS * unit

    module_name = None
    for name, tensors in narrow.modules.items():
        others = [trace.modules.get(name, []) for trace in runs]
        if any(map(lost, tensors, others[0], others[1])):
            module_name = name
            break
    parted = next((o for o in narrow.operations if torch.finfo(o.output.dtype).eps > eps), None)
    names = [[o.name for o in trace.operations] for trace in (narrow, wide, moved)]
    if parted is None and names[0] == names[1] == names[2]:
        triples = zip(narrow.operations, wide.operations, moved.operations, strict=True)
        for own, right, near in triples:
            if lost(own.output, right.output, near.output):
                parted = own
                break
    told = () if parted is None else (_in_words(way.name, parted),)
    return {"parted_in": module_name, "operations": told}
