"""Bug or rounding? Compares two ways to compute the same, each with its run in float64.

The difference is measured in units: what one unit in the last place at every operation changes.
Rounding explains a few of them. If more part the ways, it is a bug: of both, where they compute
other things in float64 too, or of the one that loses more than its dtype has to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.answers.tracing import Operation, Trace, joined, traced
from attnbench.errors import UsageError
from attnbench.oracle.operations import RoundedOperations
from attnbench.oracle.references import NormEpsilon

__all__ = ["Difference", "Way", "compare_ways"]

_UNITS = 4.0
"""Units that rounding explains, as everywhere in the suite."""
_DRAWS = 8
_SAME = 1e-9
"""Relative difference of equal values in float64, whatever the order of sums."""

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Way:
    """One of two ways to compute the same.

    Args:
        name: name for the report.
        module: the module, in the dtype under test.
        call: ``call(module, inputs)`` gives the output; it may call the module several times.
        dtype: the dtype under test.
    """

    name: str
    module: nn.Module
    call: Callable[[nn.Module, Tensors], Tensor]
    dtype: torch.dtype


@dataclass(frozen=True)
class Difference:
    """The answer.

    Args:
        verdict: ``same`` (no bit differs), ``rounding`` or ``bug``.
        units: the largest difference, in units.
        first_units, second_units: the largest error of each way against its own float64 run.
        float64_units: the largest difference of the two float64 runs.
        place: index of the largest difference.
        reason: one sentence.
        parted_in: the first submodule whose outputs part, or ``None``.
        operations: the operation at which each way parts, with its line.
    """

    verdict: str
    units: float
    first_units: float
    second_units: float
    float64_units: float
    place: tuple[int, ...]
    reason: str
    parted_in: str | None = None
    operations: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def compare_ways(first: Way, second: Way, inputs: Tensors) -> Difference:
    """Compare two ways on the same inputs.

    Args:
        first, second: the ways; a difference beyond rounding is located in the order of the first.
        inputs: arguments of both; floating ones are converted to each way's dtype.

    Raises:
        UsageError: the outputs have other shapes, or a way gives something else each time.
    """
    pair = (first, second)
    outputs = [_run(way, inputs) for way in pair]
    if outputs[0].shape != outputs[1].shape:
        raise UsageError(
            f"{first.name} gives {tuple(outputs[0].shape)} and {second.name} "
            f"{tuple(outputs[1].shape)}: two ways of the same have one shape."
        )
    for way, output in zip(pair, outputs, strict=True):
        if not _equal(_run(way, inputs), output):
            raise UsageError(
                f"{way.name} gives another output each time, so that no difference can be told "
                "from chance: put it in evaluation mode, or fix its seed."
            )
    wide = [_wide(way, inputs) for way in pair]
    unit = torch.maximum(
        *(_unit(way, inputs, right) for way, right in zip(pair, wide, strict=True))
    )
    own, other = (_most((o.double() - right), unit) for o, right in zip(outputs, wide, strict=True))
    exact = _most(wide[0] - wide[1], unit)
    gap = outputs[0].double() - outputs[1].double()
    units, place = _worst(gap, unit, outputs)
    found: dict[str, Any] = {
        "units": units,
        "first_units": own,
        "second_units": other,
        "float64_units": exact,
        "place": place,
    }
    if _equal(*(o.double() for o in outputs)):
        return Difference(verdict="same", reason="no element differs", **found)
    unlike = _unlike_nan(pair, outputs)
    if unlike:
        return Difference(verdict="bug", reason=unlike, **found, **_parting(pair, inputs))
    if exact > _UNITS:
        said = _of_both(first, second, exact)
        return Difference(verdict="bug", reason=said, **found, **_parting(pair, inputs))
    worst, way = max(((own, first), (other, second)), key=lambda one: one[0])
    if worst > _UNITS:
        told = (
            f"{way.name} is off by {worst:.3g} units from its own run in float64, and rounding "
            f"explains {_UNITS:g}: it loses more than {_short(way.dtype)} has to"
        )
        return Difference(verdict="bug", reason=told, **found, **_loss(way, inputs))
    told = f"both are within {_UNITS:g} units of the same run in float64"
    if not bool(outputs[0].isfinite().all()):
        told += "; where both give NaN or infinity, nothing could be compared"
    return Difference(verdict="rounding", reason=told, **found)


def _of_both(first: Way, second: Way, exact: float) -> str:
    return (
        f"{first.name} and {second.name} compute different things: in float64 they still differ by "
        f"{exact:.3g} units of {_short(first.dtype)}"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _run(way: Way, inputs: Tensors) -> Tensor:
    with torch.no_grad():
        given = [t.to(way.dtype) if t.is_floating_point() else t for t in inputs]
        return way.call(way.module, given).detach().clone()


def _widened(way: Way, inputs: Tensors) -> tuple[nn.Module, list[Tensor]]:
    """The module and inputs in float64, with the values that the way's dtype holds."""
    given = [t.to(way.dtype).double() if t.is_floating_point() else t for t in inputs]
    return copy.deepcopy(way.module).double(), given


def _wide(way: Way, inputs: Tensors) -> Tensor:
    module, given = _widened(way, inputs)
    with torch.no_grad(), NormEpsilon(way.dtype):
        return way.call(module, given).detach().double()


def _unit(way: Way, inputs: Tensors, right: Tensor) -> Tensor:
    """What one unit in the last place at every operation changes, ``(..., 1)``."""
    eps = torch.finfo(way.dtype).eps
    module, given = _widened(way, inputs)
    rounding, change = RoundedOperations(eps), torch.zeros_like(right)
    with torch.no_grad(), NormEpsilon(way.dtype), rounding:
        for _ in range(_DRAWS):
            off = (way.call(module, given).double() - right).abs()
            change = torch.maximum(change, off.nan_to_num(0.0))
    size = right.abs().nan_to_num(0.0, 0.0, 0.0)
    least = torch.finfo(way.dtype).smallest_normal
    both = change + eps * size + least
    return both.amax(-1, keepdim=True) if both.dim() else both


def _most(gap: Tensor, unit: Tensor) -> float:
    """The largest gap in units; elements that are not finite are told of elsewhere."""
    return float((gap.abs() / unit).nan_to_num(0.0, 0.0).max()) if gap.numel() else 0.0


def _unlike_nan(pair: tuple[Way, Way], outputs: Tensors) -> str:
    """A sentence on elements that are finite on one side only; ``""`` without any."""
    finite = [output.isfinite() for output in outputs]
    apart = finite[0] != finite[1]
    if not bool(apart.any()):
        return ""
    place = apart.nonzero()[0].tolist()
    values = [float(output[tuple(place)]) for output in outputs]
    told = (f"{way.name} gives {value:.4g}" for way, value in zip(pair, values, strict=True))
    return f"at {place}, {' and '.join(told)}"


def _worst(gap: Tensor, unit: Tensor, outputs: Tensors) -> tuple[float, tuple[int, ...]]:
    if not gap.numel():
        return 0.0, ()
    alike = outputs[0].double() == outputs[1].double()
    off = (gap.abs() / unit).masked_fill(alike, 0.0).nan_to_num(nan=math.inf)
    flat = int(off.flatten().argmax())
    place = torch.unravel_index(torch.tensor(flat), tuple(gap.shape))
    return float(off.flatten()[flat]), tuple(int(i) for i in place)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _close(one: Tensor, other: Tensor) -> bool:
    size = float(one.abs().nan_to_num(0.0, 0.0, 0.0).max()) if one.numel() else 0.0
    return _equal(one, other) or bool(((one - other).abs() <= _SAME * max(size, 1e-300)).all())


def _parting(pair: tuple[Way, Way], inputs: Tensors) -> dict[str, Any]:
    """Where two float64 runs part: the first submodule, and each side's first own operation."""
    traces = []
    for way in pair:
        module, given = _widened(way, inputs)
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
    return f"{name}: {operation.name} in {_short(operation.output.dtype)}{where}"


def _loss(way: Way, inputs: Tensors) -> dict[str, Any]:
    """Where a way loses more than rounding: its first submodule and operation that is off."""
    with torch.no_grad(), traced(way.module) as narrow:
        given = [t.to(way.dtype) if t.is_floating_point() else t for t in inputs]
        way.call(way.module, given)
    runs = []
    for mode in (None, RoundedOperations(torch.finfo(way.dtype).eps)):
        module, given = _widened(way, inputs)
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
        return not float((own.double() - right).abs().max()) <= 4 * _UNITS * unit

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
