# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""Scores of a tile of rows and slots, as functions of Triton kernels.

A tile has four dimensions until its scores are known: rows of a warp, slots of a thread, warps,
and threads of a warp. Triton spreads the last of them over threads first, so that each thread has
some rows and slots, reads a row's power once for all its slots, and many rows' with one load.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

WARPS, LANES = tl.constexpr(8), tl.constexpr(32)
HEIGHT, BREADTH = tl.constexpr(32), tl.constexpr(64)
"""Rows and slots of a tile: the compiler keeps it in registers on every GPU from 7.0 to 9.0."""
SMALL, CEILING = tl.constexpr(2.0**-31), tl.constexpr(2.0**31)
"""Products of four numbers from SMALL to CEILING are normal in float32, and so are inverses."""
LIMIT, REACH = tl.constexpr(33.0), tl.constexpr(18.0)
"""Exponentials of twice the limit, also times SMALL, are finite and not 0; tanh(33 - 18) is 1, and
remains it if an exponential of the further side is infinite or 0."""
_TINY = tl.constexpr(0.25)
LOG_CEILING = tl.constexpr(21.487)  # a little less
NEARLY_ZERO, USUAL, WIDE, FAR = (tl.constexpr(form) for form in range(4))
"""Forms of a tile; that of a tile is the largest of its units'. The first and last take tanh."""
_PTX = tl.constexpr(torch.version.hip is None and not knobs.runtime.interpret)


@triton.jit
def inverse(x):
    """1 / x for normal numbers with a normal inverse, to a unit in the last place."""
    if _PTX:  # Triton's own division takes five instructions, for it allows any number
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1
        )
    else:  # noqa: RET505 -- what follows is not compiled for PTX
        return 1 / x


@triton.jit
def tanh(x):
    """The tanh of a tile, by its series near 0."""
    square = x * x
    series = -1382.0 / 155925 * square + 62.0 / 2835
    series = series * square - 17.0 / 315
    series = series * square + 2.0 / 15
    series = series * square - 1.0 / 3
    small = x + x * square * series
    power = tl.exp(-2 * tl.abs(x))
    large = (1 - power) / (1 + power)
    return tl.where(tl.abs(x) < 0.25, small, tl.where(x < 0, -large, large))


@triton.jit
def _rows():
    """Rows of a tile: of a warp, and warps."""
    each: tl.constexpr = HEIGHT // WARPS
    return tl.arange(0, each)[:, None] + each * tl.arange(0, WARPS)[None, :]


@triton.jit
def _slots():
    """Slots of a tile: of a thread, and threads of a warp."""
    each: tl.constexpr = BREADTH // LANES
    return tl.arange(0, each)[:, None] + each * tl.arange(0, LANES)[None, :]


@triton.jit
def _powers(a_powers, b_powers, u):
    """Both sides of one unit at each pair of a tile."""
    left = tl.load(a_powers + u * HEIGHT + _rows())
    right = tl.load(b_powers + u * BREADTH + _slots())
    return left[:, None, :, None], right[None, :, None, :]


@triton.jit
def _part(a_powers, b_powers, over, u, wide: tl.constexpr):
    left, right = _powers(a_powers, b_powers, u)
    part = left * right + tl.load(over + u)
    if wide:  # what lies above adds less than 2^-62 of the largest unit
        part = tl.minimum(part, CEILING)
    return part


@triton.jit
def _quotients(a_powers, b_powers, over, middle, units: tl.constexpr, wide: tl.constexpr):
    """Sums over units of 1 / (over + power), four with one division."""
    found = tl.zeros((HEIGHT // WARPS, BREADTH // LANES, WARPS, LANES), tl.float32)
    for u in tl.range(0, units, 4, loop_unroll_factor=2):
        x0 = _part(a_powers, b_powers, over, u, wide)
        x1 = _part(a_powers, b_powers, over, u + 1, wide)
        x2 = _part(a_powers, b_powers, over, u + 2, wide)
        x3 = _part(a_powers, b_powers, over, u + 3, wide)
        low, high = x0 * x1, x2 * x3
        above = (x0 + x1) * high + (x2 + x3) * low
        # less its middle, a term is as often positive as negative
        found = above * inverse(low * high) + (found - tl.load(middle + u // 4))
    return found


@triton.jit
def _squares(a_powers, b_powers, w, units: tl.constexpr):
    found = tl.zeros((HEIGHT // WARPS, BREADTH // LANES, WARPS, LANES), tl.float32)
    for u in range(units):
        left, right = _powers(a_powers, b_powers, u)
        x = left - right
        found += tl.load(w + u) * x * x
    return found


@triton.jit
def _tanhs(a, b, w, row, slot, q_len, kv_len, units: tl.constexpr):
    found = tl.zeros((HEIGHT // WARPS, BREADTH // LANES, WARPS, LANES), tl.float32)
    rows, slots = row + _rows(), slot + _slots()
    at_rows, at_slots = rows < q_len, slots < kv_len
    rows, slots = rows.to(tl.int64), slots.to(tl.int64)
    for u in range(units):
        left = tl.load(a + rows * units + u, at_rows, 0.0)
        right = tl.load(b + slots * units + u, at_slots, 0.0)
        found += tl.load(w + u) * tanh(left[:, None, :, None] + right[None, :, None, :])
    return found


@triton.jit
def form_of(a_ends, b_ends, room, units: tl.constexpr, padded: tl.constexpr):
    """The form that a tile takes, from how far each unit of both blocks reaches from 0.

    A part may be above the ceiling where twice the sum of both is beyond ``room``.
    """
    u = tl.arange(0, padded)
    p, q = tl.load(a_ends + u, u < units, 0.0), tl.load(b_ends + u, u < units, 0.0)
    fits = (p <= REACH) | (q <= REACH) | ((p <= LIMIT) & (q <= LIMIT))
    fits = fits & (p + q >= 0)  # not if NaN
    form = tl.where(p + q < _TINY, NEARLY_ZERO, tl.where(2 * (p + q) < room, USUAL, WIDE))
    return tl.max(tl.where(fits, form, FAR), 0)


@triton.jit
def scores_of(
    a, b, w, over, middle, scale, a_ends, b_ends, a_powers, b_powers, row, slot, q_len, kv_len,
    units: tl.constexpr, padded: tl.constexpr, squares: tl.constexpr,
):  # fmt: skip
    """Scores of the tile that begins at a row and a slot, before any mask."""
    if squares:
        found = _squares(a_powers, b_powers, w, units)
    else:
        u = tl.arange(0, padded)
        room = LOG_CEILING - tl.log(tl.load(over + u, u < units, 1.0))
        form = form_of(a_ends, b_ends, room, units, padded)
        if form == USUAL:
            found = _quotients(a_powers, b_powers, over, middle, units, False) * tl.load(scale)
        elif form == WIDE:
            found = _quotients(a_powers, b_powers, over, middle, units, True) * tl.load(scale)
        else:
            found = _tanhs(a, b, w, row, slot, q_len, kv_len, units)
    return tl.reshape(tl.permute(found, (2, 0, 3, 1)), (HEIGHT, BREADTH))


@triton.jit
def masked(
    scores, mask, rows, slots, at_rows, at_slots, mask_row, mask_slot, visible,
    kind: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """Scores of a tile, with minus infinity where the mask or causality hides a slot."""
    seen = at_slots[None, :] & at_rows[:, None]
    if causal:
        seen = seen & (slots[None, :] < rows[:, None] + visible)
    if kind > 0:
        place = mask + rows[:, None] * mask_row + slots[None, :] * mask_slot
        if kind == 1:
            seen = seen & (tl.load(place, seen, 0) != 0)
        else:
            scores += tl.load(place, seen, 0.0)
    return tl.where(seen, scores, float("-inf"))
