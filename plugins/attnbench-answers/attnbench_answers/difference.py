"""Bug or rounding? Compares two ways to compute the same, each with its run in float64.

The difference is measured in units: what one unit in the last place at every operation changes.
Rounding explains a few of them. If more part the ways, it is a bug: of both, where they compute
other things in float64 too, or of the one that loses more than its dtype has to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench import UsageError
from attnbench.testing import NormEpsilon, RoundedOperations
from attnbench_answers.partings import (
    coarse_table,
    loss_of_one,
    narrows,
    parting_of_both,
    random_operation,
)
from attnbench_answers.ways import (
    UNITS,
    Tensors,
    Way,
    coarsest,
    equal,
    run,
    run_wide,
    short,
    unfused,
    widened,
)

_DRAWS = (2, 6)
"""Random roundings that are tried first, and besides, where the first ones explain too little."""
_FAR = 64 * UNITS
"""Differences that no number of them explains."""


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


def compare_ways(first: Way, second: Way, inputs: Tensors) -> Difference:
    """Compare two ways on the same inputs.

    Args:
        first, second: the ways; a difference beyond rounding is located in the order of the first.
        inputs: arguments of both; floating ones are converted to each way's dtype.

    Raises:
        UsageError: the outputs have other shapes, or a way gives something else each time.
    """
    pair = (first, second)
    outputs = _outputs(pair, inputs)
    wide = [run_wide(way, inputs) for way in pair]
    gap = outputs[0].double() - outputs[1].double()
    # of the same values: one dtype may hold an input that is another's only when rounded
    held = coarsest(pair)
    shared = [
        right if way.dtype == held else run_wide(way, inputs, held)
        for way, right in zip(pair, wide, strict=True)
    ]
    for unit in _units(pair, inputs, wide):
        losses = [
            _most(output.double() - right, unit)
            for output, right in zip(outputs, wide, strict=True)
        ]
        exact = _most(shared[0] - shared[1], unit)
        if max(*losses, exact) <= UNITS or max(*losses, exact) > _FAR:
            break
    units, place = _worst(gap, unit, outputs)
    own, other = losses
    found: dict[str, Any] = {
        "units": units,
        "first_units": own,
        "second_units": other,
        "float64_units": exact,
        "place": place,
    }
    unlike = _not_finite(pair, inputs, outputs)
    if not unlike and equal(*(o.double() for o in outputs)):
        return Difference(verdict="same", reason="no element differs", **found)
    if explanation := unlike or _of_both(pair, inputs, exact):
        both = parting_of_both(pair, inputs)
        return Difference(verdict="bug", reason=explanation, **found, **both)
    return _of_one(
        max(((own, first), (other, second)), key=lambda one: one[0]), pair, inputs, found
    )


def _outputs(pair: tuple[Way, Way], inputs: Tensors) -> list[Tensor]:
    """The outputs of two ways, each the same in a second run."""
    first, second = outputs = [run(way, inputs) for way in pair]
    if first.shape != second.shape:
        raise UsageError(
            f"{pair[0].name} gives {tuple(first.shape)} and {pair[1].name} "
            f"{tuple(second.shape)}: two ways of the same have one shape."
        )
    for way, output in zip(pair, outputs, strict=True):
        if not equal(run(way, inputs), output):
            raise UsageError(
                f"{way.name} gives another output each time{random_operation(way, inputs)}, so "
                "that no difference can be told from chance: put it in evaluation mode, or fix "
                "its seed."
            )
    return outputs


def _of_one(
    worst: tuple[float, Way], pair: tuple[Way, Way], inputs: Tensors, found: dict[str, Any]
) -> Difference:
    """What one of the ways loses more than rounding has to, or else that it is rounding."""
    units, way = worst
    if units > UNITS:
        text = (
            f"{way.name} is off by {units:.3g} units from its own run in float64, and rounding "
            f"explains {UNITS:g}: it loses more than {short(way.dtype)} has to"
        )
        return Difference(verdict="bug", reason=text, **found, **loss_of_one(way, inputs))
    for way in pair:
        table = coarse_table(way, inputs)
        if table:
            text = (
                f"{way.name} computes a table in {short(way.dtype)} that is off by {table[0]:.3g} "
                "units: rounding it once would cost half of one"
            )
            return Difference(verdict="bug", reason=text, operations=table[1:], **found)
    text = f"both are within {_limit(pair[0].dtype):g} units of the same run in float64"
    return Difference(verdict="rounding", reason=text, **found)


def _limit(dtype: torch.dtype) -> float:
    """Units that rounding explains of float64 runs: of float64 more, since both have rounded."""
    return 4 * UNITS if dtype == torch.float64 else UNITS


def _not_finite(pair: tuple[Way, Way], inputs: Tensors, outputs: Sequence[Tensor]) -> str:
    """A sentence on elements that are NaN or infinite on one side or on both; ``""`` without any.

    Raises:
        UsageError: they are on both sides, and so are inputs.
    """
    given = all(bool(t.isfinite().all()) for t in inputs if t.is_floating_point())
    remark = "" if given else ", and the inputs hold NaN or infinity"
    finite = [output.isfinite() for output in outputs]
    differ = finite[0] != finite[1]
    if bool(differ.any()):
        place = differ.nonzero()[0].tolist()
        values = [float(output[tuple(place)]) for output in outputs]
        texts = (f"{way.name} gives {value:.4g}" for way, value in zip(pair, values, strict=True))
        return f"at {place}, {' and '.join(texts)}{remark}"
    count, names = int((~finite[0]).sum()), " and ".join(way.name for way in pair)
    text = f"{count} of {outputs[0].numel()} elements are NaN or infinite in both {names}"
    if count and remark:
        raise UsageError(f"{text}{remark}: give finite ones.")
    return text if count else ""


def _units(pair: tuple[Way, Way], inputs: Tensors, wide: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield growing units ``(..., 1)``: of few random roundings, and of many."""
    found = [_unit(way, inputs, right) for way, right in zip(pair, wide, strict=True)]
    for few, many in zip(*found, strict=True):
        yield torch.maximum(few, many)


def _of_both(pair: tuple[Way, Way], inputs: Tensors, exact: float) -> str:
    """A sentence on ways that differ in float64 by more than rounding; ``""`` if they do not.

    Whoever computes a half type in a wider one may take float32 for it, but no half type.
    """
    first, second = pair
    units, dtype = exact, first.dtype
    if exact <= _limit(dtype) and first.dtype == second.dtype:
        fine = torch.promote_types(first.dtype, torch.float32)
        units, dtype = exact * torch.finfo(dtype).eps / torch.finfo(fine).eps, fine
        if units > UNITS and any(narrows(way, inputs) for way in pair):
            return ""
    if units <= _limit(dtype):
        return ""
    return (
        f"{first.name} and {second.name} compute different things: in float64 they still differ by "
        f"{units:.3g} units of {short(dtype)}"
    )


def _unit(way: Way, inputs: Tensors, right: Tensor) -> Iterator[Tensor]:
    """Yield what one unit in the last place at every operation changes, ``(..., 1)``."""
    eps = torch.finfo(way.dtype).eps
    module, given = widened(way, inputs)
    rounding = RoundedOperations(eps, (*given, *module.parameters()))
    change = torch.zeros_like(right)
    size = right.abs().nan_to_num(0.0, 0.0, 0.0)
    least = torch.finfo(way.dtype).smallest_normal
    for draws in _DRAWS:
        with torch.no_grad(), NormEpsilon(way.dtype), unfused(), rounding:
            for _ in range(draws):
                off = (way.call(module, given).double() - right).abs()
                change = torch.maximum(change, off.nan_to_num(0.0))
        both = change + eps * size + least
        yield both.amax(-1, keepdim=True) if both.dim() else both


def _most(gap: Tensor, unit: Tensor) -> float:
    """The largest gap in units, over elements that are finite."""
    return float((gap.abs() / unit).nan_to_num(0.0, 0.0).max()) if gap.numel() else 0.0


def _worst(gap: Tensor, unit: Tensor, outputs: Tensors) -> tuple[float, tuple[int, ...]]:
    if not gap.numel():
        return 0.0, ()
    alike = outputs[0].double() == outputs[1].double()
    off = (gap.abs() / unit).masked_fill(alike, 0.0).nan_to_num(nan=math.inf)
    flat = int(off.flatten().argmax())
    return float(off.flatten()[flat]), tuple(map(int, np.unravel_index(flat, gap.shape)))
