"""The first operation of a layer's call in which tokens or items reach each other that should not.

A call is traced twice, with other tokens in places that should not count. The first operation whose
result differs elsewhere is where they reach it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.subject.layer import LayerSubject
from attnbench.subject.tracing import Operation, traced

_ROWS, _TOKENS, _KEPT = 7, 11, 5
"""Numbers that hardly any other axis of a tensor has; the first tokens are kept."""

_SAME = 1e-4
"""The relative difference of equal values, whatever the order of sums."""


@functools.lru_cache(maxsize=256)
def first_mixing(subject: LayerSubject, what: str, masked: bool = False) -> str:
    """A line that names the first operation by which others reach a token or an item.

    Args:
        subject: a layer.
        what: ``items``, ``later`` tokens, or ``padded`` ones.
        masked: whether the call has a mask; what is padded has one.

    Returns:
        Empty if no operation shows it.
    """
    kept = [[0], [_ROWS - 1]] if what == "items" else [list(range(_KEPT))]
    try:
        found = (_first_mixing(subject, what, masked, torch.tensor(one)) for one in kept)
        return next(filter(None, found), "")
    except Exception:  # which a check reports
        return ""


def _first_mixing(subject: LayerSubject, what: str, masked: bool, kept: Tensor) -> str:
    rows, size = (_ROWS if what == "items" else 1), _ROWS if what == "items" else _TOKENS
    dtype = "float64" if "float64" in subject.dtypes else subject.dtypes[0]
    case = subject.legal(Case((rows,), _TOKENS, _TOKENS, 8, 8, 8, dtype=dtype))
    if case.lead != (rows,) or case.q_len != _TOKENS:
        return ""
    with torch.random.fork_rng(devices=[]):
        layer = LayerCase(subject, case)
    other = layer.other(layer.hidden)
    place = kept if what == "items" else (slice(None), kept)
    other[place] = layer.hidden[place]
    real = None
    if masked or what == "padded":
        last = _KEPT if what == "padded" else _TOKENS - 2
        real = (torch.arange(_TOKENS) < last).expand(rows, -1)
    traces = []
    for hidden in (layer.hidden, other):
        with torch.random.fork_rng(devices=[]), traced(layer.module) as trace:
            layer.run(hidden, real)
        traces.append(trace.operations)
    for one, two in zip(*traces, strict=False):
        if one.line != two.line:
            return ""
        is_alike = one.output.shape == two.output.shape  # else a size follows values
        if is_alike and _differs(one, two, size, kept):
            return f"\n  first in {one.name} at {one.where}" if one.where else ""
    return ""


def _differs(one: Operation, two: Operation, size: int, kept: Tensor) -> bool:
    """Whether results differ in the places that are kept, in each way to read their axes."""
    pairs = zip(_parts(one.output, size, kept), _parts(two.output, size, kept), strict=True)
    gaps = [
        float((a - b).abs().nan_to_num(0.0).amax()) > _SAME * float(b.abs().nan_to_num(0.0).amax())
        for a, b in pairs
        if a.numel()
    ]
    return bool(gaps) and all(gaps)


def _parts(tensor: Tensor, size: int, kept: Tensor) -> Iterator[Tensor]:
    """Yield what a tensor holds for the kept places, along each axis of their number."""
    tensor = tensor.double().nan_to_num(posinf=1e30, neginf=-1e30)
    axes = [axis for axis, count in enumerate(tensor.shape) if count == size]
    for axis in axes:
        tensor = tensor.index_select(axis, kept)
    if axes:
        yield tensor
    elif size == _ROWS and tensor.dim() and tensor.shape[0] == _ROWS * _TOKENS:
        yield tensor.reshape(_ROWS, -1)[kept]
        yield tensor.reshape(_TOKENS, _ROWS, -1)[:, kept]
