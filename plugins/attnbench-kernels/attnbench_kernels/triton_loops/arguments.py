# mypy: ignore-errors
# Triton has no types, and is not there where types are checked.
"""Tensors and sizes, as both passes take them."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from attnbench_kernels.triton_loops import tiles

OPTIONS = {"num_warps": tiles.WARPS.value, "enable_fp_fusion": True}
"""Of the compiler. Triton 3.9 warns where fusion is left to its default."""
SIZES = ("q_len", "kv_len", "visible", "mask_item", "mask_row", "a_blocks", "b_blocks")
"""Arguments that vary from call to call: kernels are not compiled anew for their values."""
_LIMIT, _SMALL = tiles.LIMIT.value, tiles.SMALL.value
_LEAST = 1e-28
"""Weights below this are nothing; what they are scaled by is still a normal number."""


def blockwise(side: Tensor, step: int) -> Tensor:
    """A side ``(N, count, h)`` in blocks, ``(N, blocks, step, h)``, the last row repeated."""
    items, count, units = side.shape
    blocks = -(-count // step)
    more = blocks * step - count
    if more:
        side = torch.cat([side, side[:, -1:].expand(items, more, units)], 1)
    return side.reshape(items, blocks, step, units)


def centred(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides, shifted against each other so that their exponentials are in float32's range.

    A unit is shifted only where a side is too far from 0, for a shift rounds: it puts the narrower
    of the sides around 0.
    """
    a_low, a_high = torch.aminmax(a, dim=1, keepdim=True)
    b_low, b_high = torch.aminmax(b, dim=1, keepdim=True)
    a_reach, b_reach = (a_high - a_low) / 2, (b_high - b_low) / 2
    shift = torch.where(a_reach <= b_reach, a_low + a_reach, -(b_low + b_reach))
    furthest = torch.stack([a_low.abs(), a_high.abs(), b_low.abs(), b_high.abs()]).amax(0)
    shift = torch.where(furthest > _LIMIT, shift, 0.0)
    return a - shift, b + shift


def _folded(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What makes a sum of quotients ``1 / (over + power)`` of weighted units.

    Returns:
        ``over``, ``(N, h')``, with h rounded up to a multiple of 4, by which the powers of a side
        are multiplied too; the ``middle`` of the range of four quotients, ``(N, h' / 4)``; and the
        ``scale`` of the sum, ``(N,)``. A weight below 2^-31 of the largest counts as that.
    """
    size = w.abs()
    least = _SMALL * size.amax(1, keepdim=True).clamp_min(_LEAST)
    over = pad(least / torch.maximum(size, least), (0, -w.shape[1] % 4), value=1.0)
    middle = (0.5 / over).unflatten(1, (-1, 4)).sum(2)
    return over, middle, -2 * least[:, 0]


def _transposed(side: Tensor) -> Tensor:
    """Blocks ``(N, blocks, step, h)`` as threads read them in order, with h a multiple of 4."""
    return pad(side, (0, -side.shape[3] % 4)).transpose(2, 3).contiguous()


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
    a_powers, b_powers = a, b
    if not squares:
        a_powers, b_powers = centred(a, b)
    a_powers = blockwise(a_powers, tiles.HEIGHT.value)
    b_powers = blockwise(b_powers, tiles.BREADTH.value)
    a_ends, b_ends, over, middle, scale = a, b, w, w, w
    if not squares:
        a_ends, b_ends = (t.abs().amax(2) for t in (a_powers, b_powers))
        over, middle, scale = _folded(w)
        rate = torch.where(w < 0, -2.0, 2.0)[:, None, None]  # tanh is odd: no weight is negative
        a_powers, b_powers = (rate * a_powers).exp(), (rate * b_powers).exp()
        a_powers = a_powers * over[:, None, None, : w.shape[1]]
    sizes = {
        "q_len": a.shape[1], "kv_len": b.shape[1], "features": value.shape[2],
        "visible": b.shape[1] - a.shape[1] + 1, "mask_item": strides[0], "mask_row": strides[1],
        "mask_slot": strides[2], "a_blocks": a_powers.shape[1], "b_blocks": b_powers.shape[1],
        "units": a.shape[2], "padded": triton.next_power_of_2(a.shape[2]), "squares": squares,
        "kind": kind, "causal": causal, **OPTIONS,
    }  # fmt: skip
    powers = _transposed(a_powers), _transposed(b_powers)
    return [a, b, w, value, mask, over, middle, scale, a_ends, b_ends, *powers], sizes
