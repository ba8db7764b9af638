"""Where two ways part, or where one loses more than rounding: its submodule and operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from attnbench.testing import NormEpsilon, RoundedOperations
from attnbench_answers.traces import traced
from attnbench_answers.ways import UNITS, Tensors, Way, coarsest, equal, short, unfused, widened

_LARGE = 3e4
"""What stands for infinity in a mask of float16, and in those of wider types, is beyond this."""

_SAME = 1e-9
"""Relative difference of equal values in float64, whatever the order of sums."""


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach().double().nan_to_num(0.0, 0.0, 0.0)
    return float(finite.abs().max()) if tensor.numel() else 0.0


def _close(one: Tensor, other: Tensor) -> bool:
    allowed = _SAME * max(_largest(one), 1e-300)
    return equal(one, other) or bool(((one - other).abs() <= allowed).all())


def parting_of_both(pair: tuple[Way, Way], inputs: Tensors) -> dict[str, Any]:
    """Where two float64 runs part: the first submodule, and each side's first own operation."""
    traces = []
    for way in pair:
        module, given = widened(way, inputs, coarsest(pair))
        with torch.no_grad(), NormEpsilon(way.dtype), unfused(), traced(module) as trace:
            way.call(module, given)
        traces.append(trace)
    module_name = None
    for name, tensors in traces[0].modules.items():
        if name not in traces[1].modules:
            continue
        both = _as_wholes(tensors, traces[1].modules[name])
        if both is not None and not _close(*both):
            module_name = name
            break
    found = [
        _first_own(*order, way.name)
        for order, way in zip(((traces[0], traces[1]), (traces[1], traces[0])), pair, strict=True)
    ]
    return {"parted_in": module_name, "operations": tuple(text for text in found if text)}


def _as_wholes(one: list[Tensor], other: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The results of several calls on each side, in one: of the shape on the side with fewer.

    Returns:
        ``None`` where they do not make it, as scores of chunks do not.
    """
    shape = (one if len(one) <= len(other) else other)[0].shape
    wholes = _joined(one, shape), _joined(other, shape)
    return None if wholes[0] is None or wholes[1] is None else (wholes[0], wholes[1])


def _first_own(mine: Any, theirs: Any, name: str) -> str:
    """The first operation of a known line after which the other side has none of the results.

    A line that both sides run is compared with itself. Any other result is looked for among all
    those that are a view of its shape, and what comes before one that is found computes the same
    in another way.
    """
    known: dict[tuple[int, int], list[Tensor]] = {}
    own, others = _by_line(mine), _by_line(theirs)
    for outputs in others.values():
        for output in outputs:
            known.setdefault(_rows(output), []).append(output)
    counts: Counter[str] = Counter()
    first: Any | None = None
    for operation in mine.operations:
        output, line = operation.output, operation.line
        place, counts[line] = counts[line], counts[line] + 1
        if not operation.where:
            continue
        if line in others:
            pair = _counterparts(own[line], others[line], place)
            # the rows of a linear map are flattened tokens, in any order
            rows = [t.sort(0).values if t.dim() == 2 else t for t in pair or ()]
            if pair is not None and not _close(*pair) and not _close(*rows):
                return _in_words(name, first or operation)
            continue
        same = known.get(_rows(output), [])
        if any(_close(output, other.reshape(output.shape)) for other in same):
            first = None if _varies(output) else first
        elif same:
            first = first or operation
    return _in_words(name, first) if first else ""


def _rows(tensor: Tensor) -> tuple[int, int]:
    """What views of one result share that only flatten or split leading axes."""
    return tensor.numel(), tensor.shape[-1] if tensor.dim() else 1


def _varies(tensor: Tensor) -> bool:
    """Whether a result has more than two values, so that it is no mask, and equals none by luck."""
    return len(torch.unique(tensor)) > 2


def _by_line(trace: Any) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for operation in trace.operations:
        found.setdefault(operation.line, []).append(operation.output)
    return found


def _counterparts(
    own: list[Tensor], others: list[Tensor], place: int
) -> tuple[Tensor, Tensor] | None:
    """Results of one line on both sides, where one side may run it several times for one."""
    fewer = min(len(own), len(others))
    if len(own) % fewer or len(others) % fewer:
        return None
    return _as_wholes(own[place % fewer :: fewer], others[place % fewer :: fewer])


def _in_words(name: str, operation: Any) -> str:
    where = f" at {operation.where}" if operation.where else ""
    return f"{name}: {operation.name} in {short(operation.output.dtype)}{where}"


def random_operation(way: Way, inputs: Tensors) -> str:
    """The first operation that two runs of a way part in, as a clause; ``""`` if none shows."""
    traces = []
    for _ in range(2):
        with torch.no_grad(), traced(way.module) as trace:
            way.call(way.module, way.given(inputs))
        traces.append(trace.operations)
    for one, other in zip(*traces, strict=False):
        if not equal(one.output, other.output):
            return f" ({one.name} at {one.where})" if one.where else f" ({one.name})"
    return ""


def narrows(way: Way, inputs: Tensors) -> bool:
    """Whether a way computes in a half type even if everything that it is given is float64."""
    module, given = widened(way, inputs)
    with torch.no_grad(), NormEpsilon(way.dtype), traced(module) as trace:
        way.call(module, given)
    return any(operation.output.dtype.itemsize < 4 for operation in trace.operations)


def _three_traces(way: Way, inputs: Tensors) -> Iterator[Any]:
    """Yield what happens in a way's own dtype, in float64, and there with roundings."""
    eps = torch.finfo(way.dtype).eps
    with torch.no_grad(), traced(way.module) as trace:
        way.call(way.module, way.given(inputs))
    yield trace
    for rounded in (False, True):
        module, given = widened(way, inputs)
        mode = RoundedOperations(eps, (*given, *module.parameters())) if rounded else nullcontext()
        # rounded within, so that what rounding itself computes is not recorded
        with torch.no_grad(), NormEpsilon(way.dtype), mode, traced(module) as trace:
            way.call(module, given)
        yield trace


def _alike(traces: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The operations of several runs, until they do other things."""
    together = zip(*(trace.operations for trace in traces), strict=False)
    return takewhile(lambda some: len({one.name for one in some}) == 1, together)


def coarse_table(way: Way, inputs: Tensors) -> tuple[Any, ...]:
    """How far a table is off that is computed in a half type from no data, in units, and where.

    Angles of positions are one: float32 holds them far better than a half type holds their cosine.

    Returns:
        ``()`` without such a table.
    """
    eps = torch.finfo(way.dtype).eps
    if eps <= torch.finfo(torch.float32).eps:
        return ()
    for own, right, near in _alike([*_three_traces(way, inputs)]):
        tables = [one.output.double().clamp(-_LARGE, _LARGE) for one in (own, right, near)]
        if not _varies(tables[1]) or not equal(tables[1], tables[2]):
            continue
        off = float((tables[0] - tables[1]).abs().max() / tables[1].abs().max() / eps)
        if off > UNITS:
            return off, _in_words(way.name, own)
    return ()


def loss_of_one(way: Way, inputs: Tensors) -> dict[str, Any]:
    """Where a way loses more than rounding: its first submodule and operation that is off."""
    eps = torch.finfo(way.dtype).eps
    narrow, wide, moved = traces = [*_three_traces(way, inputs)]

    def lost(own: Tensor, right: Tensor, near: Tensor) -> bool:
        if not own.shape == right.shape == near.shape or not own.numel():
            return False
        unit = float((near - right).abs().nan_to_num(0.0).max()) + eps * _largest(right)
        off = (own.double() - right).masked_fill(own == right, 0.0)  # infinite in both
        return not float(off.abs().max()) <= 4 * UNITS * unit

    module_name = None
    for name, tensors in narrow.modules.items():
        others = [trace.modules.get(name, []) for trace in (wide, moved)]
        if any(map(lost, tensors, others[0], others[1])):
            module_name = name
            break
    parted = next((o for o in narrow.operations if torch.finfo(o.output.dtype).eps > eps), None)
    if parted is None:
        alike = _alike(traces)
        parted = next((o for o, *rest in alike if lost(o.output, *(t.output for t in rest))), None)
    notes = () if parted is None else (_in_words(way.name, parted),)
    return {"parted_in": module_name, "operations": notes}


def _joined(tensors: list[Tensor], shape: torch.Size) -> Tensor | None:
    """The outputs of several calls as one of this shape, along the axis on which they differ.

    Returns:
        ``None`` where they do not make it.
    """
    if len(tensors) == 1:
        return tensors[0] if tensors[0].shape == shape else None
    for axis in range(len(shape)):
        others = [t for t in tensors if t.dim() == len(shape)]
        fits = len(others) == len(tensors) and all(
            t.shape[:axis] == shape[:axis] and t.shape[axis + 1 :] == shape[axis + 1 :]
            for t in tensors
        )
        if fits and sum(t.shape[axis] for t in tensors) == shape[axis]:
            return torch.cat(tensors, axis)
    return None
