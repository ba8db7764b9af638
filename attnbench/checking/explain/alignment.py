"""How the tensors of two calls of different sizes correspond, axis by axis."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.checking.explain.replay import Row

ROUNDING, ALIKE = 64.0, 8.0
"""Units in the last place by which two results may differ for the order of sums, and by which what
an operation is given may, if it is to be blamed for its result."""


class Alignment:
    """Which part of a tensor of the larger call one of the smaller call corresponds to.

    The outputs, and the places in them that are compared, say which items and tokens the smaller
    call has.
    """

    def __init__(self, large: Row, small: Row) -> None:
        assert large.call.output is not None
        assert small.call.output is not None
        shapes = large.call.output.shape[:-1], small.call.output.shape[:-1]
        self.places: dict[tuple[int, int], list[int]] = {}
        for size, wanted, place, other in zip(*shapes, large.place, small.place, strict=True):
            if size != wanted and 0 <= place - other <= size - wanted:
                self.places[size, wanted] = [*range(place - other, place - other + wanted)]

    def part(self, large: Tensor, small: Tensor) -> Tensor | None:
        """The part of a tensor that has the shape of another; ``None`` if there is none."""
        if large.dim() != small.dim() or large.is_floating_point() != small.is_floating_point():
            return None
        for axis, (size, wanted) in enumerate(zip(large.shape, small.shape, strict=True)):
            if size == wanted:
                continue
            places = self.places.get((size, wanted))
            if places is None:
                return None
            large = large.index_select(axis, torch.tensor(places, device=large.device))
        return large

    def put(self, large: Tensor, small: Tensor) -> Tensor:
        """A copy of a tensor in which that part is another."""
        flat = self.part(torch.arange(large.numel()).view(large.shape).double(), small.double())
        assert flat is not None
        whole = large.clone().flatten()
        whole[flat.long().flatten()] = small.to(large.dtype).flatten()
        return whole.view(large.shape)


def differ(one: Tensor, other: Tensor, units: float = ROUNDING) -> bool:
    """Whether two tensors of one shape differ by more than rounding does."""
    if one.shape != other.shape:
        return True
    if not (one.is_floating_point() and other.is_floating_point()):
        return not torch.equal(one, other)
    eps = max(torch.finfo(each.dtype).eps for each in (one, other))
    a, b = one.double(), other.double()
    known = a.isfinite() & b.isfinite()
    if not torch.equal(
        a.masked_fill(known, 0.0).nan_to_num(9.0), b.masked_fill(known, 0.0).nan_to_num(9.0)
    ):
        return True
    if not bool(known.any()):
        return False
    size = max(float(a[known].abs().max()), float(b[known].abs().max()))
    return float((a - b)[known].abs().max()) > units * eps * size
