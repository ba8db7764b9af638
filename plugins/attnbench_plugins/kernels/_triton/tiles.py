# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""What a tile of rows and slots needs, as functions of Triton kernels: terms, scores, mask."""

from __future__ import annotations

import triton
import triton.language as tl

_REACH = tl.constexpr(14.0)
_FURTHEST = tl.constexpr(80.0)
_TINY = tl.constexpr(0.25)
_CEILING = tl.constexpr(2147483648.0)


@triton.jit
def _tanh(x):
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
def _sums(
    a_powers, b_powers, a_ends, b_ends, u, units: tl.constexpr, height: tl.constexpr,
    breadth: tl.constexpr,
):  # fmt: skip
    """1 + exp(2 (a + b)) of one unit at each pair of a tile; 2 beyond the units.

    Powers are from the middles of their blocks, at most exp(28). Where the middles' sum is clamped,
    tanh is 1; a product that overflows is infinite, and one that underflows is 0, as they should.
    """
    there = u < units
    middles = tl.load(a_ends + 2 * units + u, there, 0.0)
    middles += tl.load(b_ends + 2 * units + u, there, 0.0)
    factor = tl.exp(tl.minimum(tl.maximum(2 * middles, -_FURTHEST), _FURTHEST))
    left = tl.load(a_powers + u * height + tl.arange(0, height)) * factor
    right = tl.load(b_powers + u * breadth + tl.arange(0, breadth))
    return left[:, None] * right[None, :] + 1


@triton.jit
def is_exact(a_ends, b_ends, units: tl.constexpr, padded: tl.constexpr):
    """Whether a tile must take tanh itself."""
    u = tl.arange(0, padded)
    there = u < units
    low, high = tl.load(a_ends + u, there, 0.0), tl.load(a_ends + units + u, there, 0.0)
    least, most = tl.load(b_ends + u, there, 0.0), tl.load(b_ends + units + u, there, 0.0)
    reach = tl.maximum(high - low, most - least) / 2
    ends = tl.maximum(tl.abs(low), tl.abs(high)) + tl.maximum(tl.abs(least), tl.abs(most))
    far = tl.max(tl.where(reach <= _REACH, 0, 1), 0)  # also where it is NaN
    return (far > 0) | (tl.max(ends, 0) < _TINY)


@triton.jit
def scores_of(
    a, b, w, a_ends, b_ends, a_powers, b_powers, rows, slots, at_rows, at_slots, exact,
    units: tl.constexpr, squares: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Scores of a tile, before any mask."""
    found = tl.zeros((height, breadth), tl.float32)
    if squares:
        for u in range(units):
            left = tl.load(a + rows * units + u, at_rows, 0.0)[:, None]
            x = left - tl.load(b + slots * units + u, at_slots, 0.0)[None, :]
            found += tl.load(w + u) * x * x
    elif exact:
        for u in range(units):
            left = tl.load(a + rows * units + u, at_rows, 0.0)[:, None]
            x = left + tl.load(b + slots * units + u, at_slots, 0.0)[None, :]
            found += tl.load(w + u) * _tanh(x)
    else:
        for u in range(0, units, 4):
            x0 = _sums(a_powers, b_powers, a_ends, b_ends, u, units, height, breadth)
            x0 = tl.minimum(x0, _CEILING)
            x1 = _sums(a_powers, b_powers, a_ends, b_ends, u + 1, units, height, breadth)
            x1 = tl.minimum(x1, _CEILING)
            x2 = _sums(a_powers, b_powers, a_ends, b_ends, u + 2, units, height, breadth)
            x2 = tl.minimum(x2, _CEILING)
            x3 = _sums(a_powers, b_powers, a_ends, b_ends, u + 3, units, height, breadth)
            x3 = tl.minimum(x3, _CEILING)
            w0, w1 = tl.load(w + u), tl.load(w + u + 1, u + 1 < units, 0.0)
            w2, w3 = tl.load(w + u + 2, u + 2 < units, 0.0), tl.load(w + u + 3, u + 3 < units, 0.0)
            low, high = x0 * x1, x2 * x3
            above = (w0 * x1 + w1 * x0) * high + (w2 * x3 + w3 * x2) * low
            # less its middle, a term is as often positive as negative
            found += (w0 + w1 + w2 + w3) - 2 * (above / (low * high))
    return found


@triton.jit
def masked(
    scores, mask, rows, slots, at_rows, at_slots, mask_row, mask_slot, visible,
    kind: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
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


@triton.jit
def unit(
    a, b, a_ends, b_ends, a_powers, b_powers, rows, slots, at_rows, at_slots, u, exact,
    units: tl.constexpr, squares: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """One unit's value at each pair, and its derivative in ``a``."""
    if squares:
        left = tl.load(a + rows * units + u, at_rows, 0.0)[:, None]
        x = left - tl.load(b + slots * units + u, at_slots, 0.0)[None, :]
        return x * x, 2 * x
    else:  # noqa: RET505 -- what follows is not compiled for squares
        if exact:
            left = tl.load(a + rows * units + u, at_rows, 0.0)[:, None]
            t = _tanh(left + tl.load(b + slots * units + u, at_slots, 0.0)[None, :])
            slope = 1 - t * t
        else:
            r = 1 / _sums(a_powers, b_powers, a_ends, b_ends, u, units, height, breadth)
            t = 1 - 2 * r
            slope = 4 * (r - r * r)
        return t, slope
