# mypy: ignore-errors
# Triton has no types, and is not there where types are checked.
"""Tensors and sizes, as both passes take them."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["OPTIONS", "SIZES", "arranged", "on_its_device", "padded_width"]

_ROWS, _SLOTS = 32, 64
"""Of a tile. With these and the warps below the compiler keeps a tile in registers on every GPU
from 7.0 to 9.0, and with 64 rows it spilled up to 9 KiB a thread."""
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}
"""Of the compiler. Triton 3.9 warns where fusion is left to its default."""
SIZES = ("q_len", "kv_len", "visible", "mask_item", "mask_row", "a_blocks", "b_blocks")
"""Arguments that vary from call to call: kernels are not compiled anew for their values."""


def _blockwise(side: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """What the quotients need of a side ``(N, count, h)``, in blocks of rows.

    Returns:
        Least, largest and middle of each unit in a block, ``(N, blocks, 3, h)``; and exp(2 x) of
        each distance x from the middle, ``(N, blocks, h, step)``, h rounded up to a multiple of 4.
        Threads read these in order, the compiler knows the strides, and no load needs a mask.
    """
    items, count, units = side.shape
    blocks = -(-count // step)
    more = blocks * step - count
    if more:  # the last row again
        side = torch.cat([side, side[:, -1:].expand(items, more, units)], 1)
    side = side.reshape(items, blocks, step, units)
    low, high = torch.aminmax(side, dim=2)
    middle = (low + high) / 2
    powers = (2 * (side - middle.unsqueeze(2))).exp()
    powers = pad(powers, (0, -units % 4), value=1.0).transpose(2, 3).contiguous()
    return torch.stack([low, high, middle], 2).contiguous(), powers


def arranged(
    a: Tensor, b: Tensor, w: Tensor, value: Tensor, mask: Tensor | None, causal: bool, squares: bool
) -> tuple[list[Tensor], dict[str, int | bool]]:
    """Tensors, and all else, as the kernels take them."""
    a, b, w, value = (t.contiguous() for t in (a, b, w, value))
    kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    if mask is None:
        mask = a
        strides = (0, 0, 0)
    else:
        mask = mask.expand(a.shape[0], a.shape[1], b.shape[1])
        strides = tuple(mask.stride())
        mask = mask.view(torch.uint8) if kind == 1 else mask
    a_ends = a_powers = a
    b_ends = b_powers = b
    if not squares:
        a_ends, a_powers = _blockwise(a, _ROWS)
        b_ends, b_powers = _blockwise(b, _SLOTS)
    sizes = {
        "q_len": a.shape[1], "kv_len": b.shape[1], "features": value.shape[2],
        "visible": b.shape[1] - a.shape[1] + 1, "mask_item": strides[0], "mask_row": strides[1],
        "mask_slot": strides[2], "a_blocks": -(-a.shape[1] // _ROWS),
        "b_blocks": -(-b.shape[1] // _SLOTS), "units": a.shape[2],
        "padded": triton.next_power_of_2(a.shape[2]), "squares": squares, "kind": kind,
        "causal": causal, "height": _ROWS, "breadth": _SLOTS, **OPTIONS,
    }  # fmt: skip
    return [a, b, w, value, mask, a_ends, b_ends, a_powers, b_powers], sizes


def padded_width(features: int, most: int) -> int:
    """Features of the values that a product takes at once, as Triton can take them."""
    return max(16, min(most, triton.next_power_of_2(features)))


def on_its_device(like: Tensor) -> torch.cuda.device_of:
    """A context in which kernels start on the device of a tensor; nothing for one on the CPU.

    Triton starts them on the current device, whatever device the tensors are on.
    """
    return torch.cuda.device_of(like)
