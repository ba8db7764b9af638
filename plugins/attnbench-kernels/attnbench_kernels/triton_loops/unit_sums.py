# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""What one side's rows and the units of the other gather from the slopes of a tile.

A thread has some rows and units of one side, and goes through the rows of the other: nothing is
added up across threads. Each value is weighted by the slope of its pair, the gradient of a score.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnbench_kernels.triton_loops.tiles import (
    CEILING,
    FAR,
    LANES,
    LOG_CEILING,
    SMALL,
    USUAL,
    WARPS,
    WIDE,
    form_of,
    inverse,
    tanh,
)


@triton.jit
def _slope(slopes, row, step: tl.constexpr):
    """Slopes of a row of the other side, ``(rows of a warp, 1, warps, 1)``."""
    each: tl.constexpr = step // WARPS
    own = tl.arange(0, each)[:, None] + each * tl.arange(0, WARPS)[None, :]
    return tl.load(slopes + row * step + own)[:, None, :, None]


@triton.jit
def _row(side, row, stride: tl.constexpr, chunk: tl.constexpr):
    """A row of the other side, ``(1, units of a thread, 1, threads of a warp)``."""
    each: tl.constexpr = chunk // LANES
    u = tl.arange(0, each)[:, None] + each * tl.arange(0, LANES)[None, :]
    return tl.load(side + row * stride + u)[None, :, None, :]


@triton.jit
def _part(left, other, row, stride: tl.constexpr, chunk: tl.constexpr, wide: tl.constexpr):
    part = left * _row(other, row, stride, chunk) + 1
    if wide:  # what lies above 2^62 is nothing
        part = tl.minimum(part * SMALL, CEILING)
    return part


@triton.jit
def _quotients(
    left, other, slopes, step: tl.constexpr, count: tl.constexpr, stride: tl.constexpr,
    chunk: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Sums of r - r² and of r, where r = 1 / (1 + exp(2 x)): four with one division."""
    bent, plain = tl.zeros_like(left), tl.zeros_like(left)
    for row in range(0, count, 4):
        x0 = _part(left, other, row, stride, chunk, wide)
        x1 = _part(left, other, row + 1, stride, chunk, wide)
        x2 = _part(left, other, row + 2, stride, chunk, wide)
        x3 = _part(left, other, row + 3, stride, chunk, wide)
        low, high = x0 * x1, x2 * x3
        whole = inverse(low * high)
        first, last = whole * high, whole * low
        if wide:
            first, last = first * SMALL, last * SMALL
        r0, r1, r2, r3 = first * x1, first * x0, last * x3, last * x2
        g0, g1 = _slope(slopes, row, step), _slope(slopes, row + 1, step)
        g2, g3 = _slope(slopes, row + 2, step), _slope(slopes, row + 3, step)
        bent = bent + g0 * (r0 - r0 * r0) + g1 * (r1 - r1 * r1)
        bent = bent + g2 * (r2 - r2 * r2) + g3 * (r3 - r3 * r3)
        plain = plain + g0 * r0 + g1 * r1 + g2 * r2 + g3 * r3
    return bent, plain


@triton.jit
def _tanhs(
    left, other, slopes, step: tl.constexpr, count: tl.constexpr, stride: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    bent, plain = tl.zeros_like(left), tl.zeros_like(left)
    for row in range(count):
        t = tanh(left + _row(other, row, stride, chunk))
        slope = _slope(slopes, row, step)
        bent += slope * (0.25 - 0.25 * t * t)
        plain += slope * t
    return bent, plain


@triton.jit
def _squares(
    left, other, slopes, step: tl.constexpr, count: tl.constexpr, stride: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    bent, plain = tl.zeros_like(left), tl.zeros_like(left)
    for row in range(count):
        x = left - _row(other, row, stride, chunk)
        slope = _slope(slopes, row, step)
        bent += slope * x
        plain += slope * x * x
    return bent, plain


@triton.jit
def gather(
    own, other, own_powers, other_powers, own_ends, other_ends, slopes, total, sums, parts,
    units: tl.constexpr, padded: tl.constexpr, stride: tl.constexpr, chunk: tl.constexpr,
    squares: tl.constexpr, step: tl.constexpr, count: tl.constexpr, weights: tl.constexpr,
):  # fmt: skip
    """Add a tile's part to the sums of a block of rows, and to the gradient of the weights.

    Args:
        own, other: blocks of ``step`` and ``count`` rows of both sides, each ``stride`` long.
        own_powers, other_powers: exponentials of twice their distance, unless with ``squares``.
        own_ends, other_ends: as for :func:`form_of`.
        slopes: gradients of the scores, ``(count, step)``.
        total: their sum.
        sums: ``(step, stride)``, to be multiplied by 4 w, or by 2 w with ``squares``.
        parts: gradient of the weights, ``(stride,)``; only with ``weights``.
    """
    form = FAR
    if not squares:
        form = form_of(own_ends, other_ends, LOG_CEILING, units, padded)
    rows: tl.constexpr = step // WARPS
    each: tl.constexpr = chunk // LANES
    row = tl.arange(0, rows)[:, None, None, None] + rows * tl.arange(0, WARPS)[None, None, :, None]
    unit = tl.arange(0, each)[:, None] + each * tl.arange(0, LANES)[None, :]
    for first in range(0, stride, chunk):
        place = first + row * stride + unit[None, :, None, :]
        if squares:
            bent, plain = _squares(
                tl.load(own + place), other + first, slopes, step, count, stride, chunk
            )
        elif form == USUAL:
            bent, plain = _quotients(
                tl.load(own_powers + place), other_powers + first, slopes, step, count, stride,
                chunk, False,
            )  # fmt: skip
        elif form == WIDE:
            bent, plain = _quotients(
                tl.load(own_powers + place), other_powers + first, slopes, step, count, stride,
                chunk, True,
            )  # fmt: skip
        else:
            bent, plain = _tanhs(
                tl.load(own + place), other + first, slopes, step, count, stride, chunk
            )
        tl.store(sums + place, tl.load(sums + place) + bent)
        if weights:
            more = tl.sum(tl.sum(plain, 2), 0)
            if (form == USUAL) | (form == WIDE):  # tanh is 1 - 2 r
                more = total - 2 * more
            tl.store(parts + first + unit, tl.load(parts + first + unit) + more)
