"""Calls of the compiled loops of ``loops.cpp``."""

from __future__ import annotations

import ctypes
import enum

import torch
from torch import Tensor

from attnbench_kernels.library import library

_FIELDS = """items rows slots units features a_item a_row b_item b_row w_item value_item value_row
weights_item weights_row output_item output_row mask_kind mask_item mask_row mask_slot visible
form parts threads"""
_SMALL = 2**15
"""Terms of a sum below which no further thread is used."""


class Form(enum.IntEnum):
    """The function that each hidden unit adds to a score; as in ``vectors.h``."""

    QUOTIENT = 0  # w tanh(a + b), by exponentials
    TANH = 1  # w tanh(a + b), by tanh
    SQUARES = 2  # w (a - b)²


class _Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS.split()]


def _by_rows(tensor: Tensor) -> Tensor:
    """The tensor if its last dimension is contiguous, else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _call(name: str, tensors: tuple[Tensor | None, ...], reach: float, sizes: _Sizes) -> None:
    loops = library()
    assert loops is not None
    like = next(t for t in tensors if t is not None)
    assert all(t is None or t.dtype in (like.dtype, torch.bool) for t in tensors)
    terms = sizes.items * sizes.rows * sizes.slots * sizes.units
    sizes.threads = max(1, min(torch.get_num_threads(), terms // _SMALL))
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    kind = "double" if like.dtype == torch.float64 else "single"
    getattr(loops, f"{name}_{kind}")(*pointers, reach, ctypes.addressof(sizes))


def attend(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    mask: Tensor | None,
    visible: int,
    form: Form,
    reach: float = 0.0,
    value: Tensor | None = None,
    output: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    r"""Softmax over :math:`w^\top f(a_i, b_j)`, and its product with the values.

    Args:
        a, b, w, mask, visible, value, output, weights: as of :func:`.sums.attend`.
        form: form of f.
        reach: largest ``|a + b|``, for ``Form.QUOTIENT``.
    """
    a, b, w = _by_rows(a), _by_rows(b), _by_rows(w)
    sizes = _Sizes(items=a.shape[0], rows=a.shape[1], slots=b.shape[1], units=a.shape[2])
    sizes.a_item, sizes.a_row, sizes.b_item, sizes.b_row = *a.stride()[:2], *b.stride()[:2]
    sizes.w_item, sizes.visible, sizes.form = w.stride(0), visible, form
    if value is not None and output is not None:
        value, sizes.features = _by_rows(value), value.shape[2]
        sizes.value_item, sizes.value_row = value.stride()[:2]
        sizes.output_item, sizes.output_row = output.stride()[:2]
    if weights is not None:
        sizes.weights_item, sizes.weights_row = weights.stride()[:2]
    if mask is not None:
        mask = mask.expand(a.shape[0], a.shape[1], b.shape[1])
        sizes.mask_item, sizes.mask_row, sizes.mask_slot = mask.stride()
        sizes.mask_kind = 1 if mask.dtype == torch.bool else 2
    _call("attend", (a, b, w, value, mask, weights, output), reach, sizes)


def slopes(
    g: Tensor,
    a: Tensor,
    b: Tensor,
    w: Tensor,
    visible: int,
    form: Form,
    reach: float,
    grad_a: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``b`` and ``w``, as of :func:`.sums.slopes`; see :func:`attend`."""
    g, a, b, w = _by_rows(g), _by_rows(a), _by_rows(b), _by_rows(w)
    sizes = _Sizes(items=a.shape[0], rows=a.shape[1], slots=b.shape[1], units=a.shape[2])
    sizes.a_item, sizes.a_row, sizes.b_item, sizes.b_row = *a.stride()[:2], *b.stride()[:2]
    sizes.w_item, sizes.visible, sizes.form = w.stride(0), visible, form
    sizes.weights_item, sizes.weights_row = g.stride()[:2]
    sizes.output_item, sizes.output_row = grad_a.stride()[:2]
    # threads share units in strips of 16; if there are few strips, they share rows as well
    tasks = a.shape[0] * -(-a.shape[2] // 16)
    sizes.parts = max(1, min(2 * torch.get_num_threads() // tasks, a.shape[1] // 32))
    grad_b, grad_w = (t.new_empty(sizes.parts, *t.shape) for t in (b, w))
    _call("slopes", (g, a, b, w, grad_a, grad_b, grad_w), reach, sizes)
    grad_b, grad_w = (t[0] if sizes.parts == 1 else t.sum(0) for t in (grad_b, grad_w))
    if form == Form.QUOTIENT:  # the loops sum g (tanh - 1); rows of g sum to 0 up to rounding
        grad_w += g.sum((1, 2)).unsqueeze(1)
    return grad_b, grad_w
