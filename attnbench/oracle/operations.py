"""The rounding of a subject's own operations, which moving its inputs may not reveal.

A normalisation over two features, for example, gives ±1 wherever its inputs move to, but rounding
its mean moves the output by many units in the last place. The modes of this module round operations
at random; the resulting change of the output is part of an error budget.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attnbench.attention.torch_internals import OperationMode, nested_tensors

_ATEN = torch.ops.aten
_MEANS = (_ATEN.mean, _ATEN.var_mean, _ATEN.std_mean)
_PRODUCTS = (_ATEN.mm, _ATEN.bmm, _ATEN.addmm, _ATEN.baddbmm)
_FINEST = torch.finfo(torch.float32).eps
"""Means and sums of half types should be taken in float32, as torch does."""


def nudged(tensor: Tensor, step: float, generator: torch.Generator) -> Tensor:
    """The tensor with each element moved by a share of itself, up or down at random."""
    up = torch.randint(2, tensor.shape, generator=generator).mul_(2).sub_(1)
    return tensor * (1 + step * up.to(tensor))


def change_by_moves(
    run: Callable[[Callable[[Tensor], Tensor]], Tensor], still: Tensor, steps: Iterable[float]
) -> Tensor:
    """The largest change of each element of a result when what it is computed from moves.

    Args:
        run: computes the result; it gets the function that moves a tensor.
        still: the result if nothing moves.
        steps: shares of itself by which each element moves, one for each run.
    """
    generator = torch.Generator().manual_seed(0)
    most = torch.zeros_like(still, dtype=torch.float64)
    with torch.no_grad():
        for step in steps:
            move = functools.partial(nudged, step=step, generator=generator)
            change = (run(move).double() - still.double()).abs()
            most = torch.maximum(most, change.nan_to_num(0.0))
    return most


class RoundedMeans(OperationMode):
    """Move every mean, and every mean within a normalisation, by one unit up or down at random.

    Other operations are left alone, so that a subject's own cancellation, as in
    ``q² + k² - 2·q·k``, is not excused.

    Args:
        eps: one unit in the last place, relative; at most that of float32 is used.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.unit = min(eps, _FINEST)
        self.generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        if operation is _ATEN.native_layer_norm or operation is _ATEN.native_group_norm:
            output, mean, scale = result
            shift = self._unit_of(mean) * scale  # before the weights
            weight = args[2]
            if operation is _ATEN.native_group_norm:
                shift, weight = _by_channel(shift, output), _by_channel(args[1], output)
            output = output + (shift if weight is None else shift * weight).to(output.dtype)
            return output, mean, scale
        if operation in _MEANS:
            is_tuple = isinstance(result, tuple)
            mean = result[-1] if is_tuple else result
            mean = mean + self._unit_of(mean) if mean.is_floating_point() else mean
            return (*result[:-1], mean) if is_tuple else mean
        return result

    def _unit_of(self, tensor: Tensor) -> Tensor:
        signs = torch.randint(2, tensor.shape, generator=self.generator).mul_(2).sub_(1)
        return tensor * self.unit * signs.to(tensor)


def _by_channel(tensor: Tensor | None, output: Tensor) -> Tensor | None:
    """Expand a value per group ``(N, G)`` or per channel ``(C,)`` to broadcast to an output."""
    if tensor is None:
        return None
    channels = tensor.repeat_interleave(output.shape[1] // tensor.shape[-1], -1)
    return channels.reshape(*channels.shape, *[1] * (output.dim() - 2))


class RoundedOperations(RoundedMeans):  # type: ignore[no-untyped-call]  # torch has not typed it
    """Round every result of every operation up or down at random to a precision, and means too.

    Results that are exact in this precision (positions, counts, ones and zeros) are not changed.

    Args:
        eps: the precision, relative.
        data: round only operations on these tensors and on what is computed from them, since a
            table of constants, such as the angles of positions, can be exact. By default, all.
    """

    def __init__(self, eps: float, data: Iterable[Tensor] | None = None) -> None:
        super().__init__(eps)
        self.eps = eps
        self.data = None if data is None else WeakIdKeyDictionary(dict.fromkeys(data, True))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.data is None:
            return self._round_results(func, types, args, kwargs)
        if not any(tensor in self.data for tensor in nested_tensors((args, kwargs))):
            return func(*args, **(kwargs or {}))
        result = self._round_results(func, types, args, kwargs)
        floating = (tensor for tensor in nested_tensors(result) if tensor.is_floating_point())
        self.data.update(dict.fromkeys(floating, True))  # a position of a token is no data
        return result

    def _round_results(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if getattr(func, "overloadpacket", None) in _PRODUCTS and self.eps <= _FINEST:
            result = result + self._walk(result, *args[-2:])
        if isinstance(result, tuple):  # from a normalisation or a higher-order operator
            return tuple(map(self._round, result))
        return result if getattr(func, "is_view", False) else self._round(result)

    def _walk(self, result: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """What adding the terms of a matrix product one by one loses: one standard deviation.

        Each of the n partial sums rounds by 0.2 units of itself. Their squares add up to about
        n / 2 times the squares of all terms and of the sum.
        """
        squares = (left.square() @ right.square()).addcmul(result, result)
        return self._unit_of(0.14 * math.sqrt(left.shape[-1]) * squares.sqrt())

    def _round(self, result: Any) -> Any:
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        unit = torch.ldexp(torch.full_like(result, self.eps / 2), torch.frexp(result).exponent)
        low = (result / unit).floor()
        up = torch.randint(2, result.shape, generator=self.generator).to(result.dtype)
        values = torch.where(low * unit == result, result, (low + up) * unit)
        return torch.where(values.isfinite(), values, result)
