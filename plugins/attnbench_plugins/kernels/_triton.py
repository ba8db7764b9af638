# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""Attention over sums of w tanh(a + b) or w (a - b)² as Triton kernels with an online softmax.

Neither pass makes a tensor of ``L·S``, and a call does not wait for the device, so that it can be
captured in a CUDA graph: whether the exponentials of a tile stay in float32's range is decided on
the device. Each tile shifts both sides of a unit by the same, and clamps what lies so far out that
tanh is 1; where no shift suffices, or all is nearly 0, the tile takes tanh itself. Four units share
a division. Nothing is added up by atomic operations: the same call gives the same result.

With ``TRITON_INTERPRET=1`` the kernels run on the CPU, slowly, for tests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["attend", "differentiate"]

_ROWS, _SLOTS = 64, 64
_REACH = tl.constexpr(12.0)
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
def _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u, units: tl.constexpr):
    """One unit's exponentials, of a column of rows and a row of slots; 1 and 0 beyond the units."""
    there = u < units
    low, high = tl.load(a_ends + u, there, 0.0), tl.load(a_ends + units + u, there, 0.0)
    least, most = tl.load(b_ends + u, there, 0.0), tl.load(b_ends + units + u, there, 0.0)
    a_reach, b_reach = (high - low) / 2, (most - least) / 2
    shift = tl.where(a_reach <= b_reach, low + a_reach, -(least + b_reach))
    bound = tl.minimum(a_reach, b_reach) + _REACH
    left = tl.load(a + rows * units + u, at_rows & there, 0.0) - shift
    right = tl.load(b + slots * units + u, at_slots & there, 0.0) + shift
    left = tl.exp(2 * tl.minimum(tl.maximum(left, -bound), bound))
    right = tl.exp(2 * tl.minimum(tl.maximum(right, -bound), bound))
    return left[:, None], right[None, :]


@triton.jit
def _exact(a_ends, b_ends, units: tl.constexpr, padded: tl.constexpr):
    """Whether a tile must take tanh itself."""
    u = tl.arange(0, padded)
    there = u < units
    low, high = tl.load(a_ends + u, there, 0.0), tl.load(a_ends + units + u, there, 0.0)
    least, most = tl.load(b_ends + u, there, 0.0), tl.load(b_ends + units + u, there, 0.0)
    reach = tl.minimum(high - low, most - least) / 2
    ends = tl.maximum(tl.abs(low), tl.abs(high)) + tl.maximum(tl.abs(least), tl.abs(most))
    far = tl.max(tl.where(reach <= _REACH, 0, 1), 0)  # also where it is NaN
    return (far > 0) | (tl.max(ends, 0) < _TINY)


@triton.jit
def _scores(
    a, b, w, a_ends, b_ends, rows, slots, at_rows, at_slots, exact,
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
            p, q = _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u, units)
            x0 = tl.minimum(p * q + 1, _CEILING)
            p, q = _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u + 1, units)
            x1 = tl.minimum(p * q + 1, _CEILING)
            p, q = _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u + 2, units)
            x2 = tl.minimum(p * q + 1, _CEILING)
            p, q = _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u + 3, units)
            x3 = tl.minimum(p * q + 1, _CEILING)
            w0, w1 = tl.load(w + u), tl.load(w + u + 1, u + 1 < units, 0.0)
            w2, w3 = tl.load(w + u + 2, u + 2 < units, 0.0), tl.load(w + u + 3, u + 3 < units, 0.0)
            low, high = x0 * x1, x2 * x3
            above = (w0 * x1 + w1 * x0) * high + (w2 * x3 + w3 * x2) * low
            # less its middle, a term is as often positive as negative
            found += (w0 + w1 + w2 + w3) - 2 * (above / (low * high))
    return found


@triton.jit
def _masked(
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
def _forward(
    a, b, w, value, mask, a_ends, b_ends, output, logs,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    block, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part = tl.program_id(2) * width
    rows = block * height + tl.arange(0, height).to(tl.int64)
    at_rows = rows < q_len
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    a_ends += (n * a_blocks + block) * 2 * units
    place = part + tl.arange(0, width)
    at = place < features
    top = tl.full((height,), float("-inf"), tl.float32)
    total = tl.zeros((height,), tl.float32)
    sums = tl.zeros((height, width), tl.float32)
    last = kv_len
    if causal:
        last = tl.minimum(kv_len, block * height + height - 1 + visible)
    for start in range(0, last, breadth):
        slots = start + tl.arange(0, breadth).to(tl.int64)
        at_slots = slots < kv_len
        own_ends = b_ends + (n * b_blocks + start // breadth) * 2 * units
        exact = True
        if not squares:
            exact = _exact(a_ends, own_ends, units, padded)
        scores = _scores(
            a, b, w, a_ends, own_ends, rows, slots, at_rows, at_slots, exact,
            units, squares, height, breadth,
        )  # fmt: skip
        scores = _masked(
            scores, mask, rows, slots, at_rows, at_slots, mask_row, mask_slot, visible,
            kind, causal,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        share = tl.exp(top - base)
        values = tl.load(
            value + n * kv_len * features + slots[:, None] * features + place[None, :],
            at_slots[:, None] & at[None, :],
            0.0,
        )
        total = total * share + tl.sum(weights, 1)
        sums = sums * share[:, None] + tl.dot(weights, values, input_precision="ieee")
        top = higher
    total = tl.where(total == 0, 1.0, total)  # of rows beyond the last
    tl.store(
        output + n * q_len * features + rows[:, None] * features + place[None, :],
        sums / total[:, None],
        at_rows[:, None] & at[None, :],
    )
    if part == 0:
        tl.store(logs + n * q_len + rows, top + tl.log(total), at_rows)


@triton.jit
def _slope_of_tile(
    a, b, w, value, mask, a_ends, b_ends, grad, logs, deltas, rows, slots, at_rows, at_slots,
    features, visible, mask_row, mask_slot,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Weights of a tile, the gradient of its scores, and whether it takes tanh itself."""
    exact = True
    if not squares:
        exact = _exact(a_ends, b_ends, units, padded)
    scores = _scores(
        a, b, w, a_ends, b_ends, rows, slots, at_rows, at_slots, exact,
        units, squares, height, breadth,
    )  # fmt: skip
    scores = _masked(
        scores, mask, rows, slots, at_rows, at_slots, mask_row, mask_slot, visible, kind, causal
    )
    log = tl.load(logs + rows, at_rows, 0.0)
    weights = tl.exp(scores - log[:, None])
    outer = tl.zeros((height, breadth), tl.float32)
    for part in range(0, features, width):
        place = part + tl.arange(0, width)
        at = place < features
        upstream = tl.load(
            grad + rows[:, None] * features + place[None, :], at_rows[:, None] & at[None, :], 0.0
        )
        values = tl.load(
            value + slots[None, :] * features + place[:, None], at_slots[None, :] & at[:, None], 0.0
        )
        outer += tl.dot(upstream, values, input_precision="ieee")
    slope = weights * (outer - tl.load(deltas + rows, at_rows, 0.0)[:, None])
    return weights, slope, exact


@triton.jit
def _unit(
    a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u, exact,
    units: tl.constexpr, squares: tl.constexpr,
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
            p, q = _sides(a, b, a_ends, b_ends, rows, slots, at_rows, at_slots, u, units)
            r = 1 / (p * q + 1)
            t = 1 - 2 * r
            slope = 4 * (r - r * r)
        return t, slope


@triton.jit
def _backward_rows(
    a, b, w, value, mask, a_ends, b_ends, grad, logs, deltas, grad_a, grad_w,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and its part of that of the weights of units."""
    block, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = block * height + tl.arange(0, height).to(tl.int64)
    at_rows = rows < q_len
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    a_ends += (n * a_blocks + block) * 2 * units
    grad_a += n * q_len * units
    grad_w += (n * a_blocks + block) * units
    last = kv_len
    if causal:
        last = tl.minimum(kv_len, block * height + height - 1 + visible)
    for start in range(0, last, breadth):
        slots = start + tl.arange(0, breadth).to(tl.int64)
        at_slots = slots < kv_len
        own_ends = b_ends + (n * b_blocks + start // breadth) * 2 * units
        _, slope, exact = _slope_of_tile(
            a, b, w, value + n * kv_len * features, mask, a_ends, own_ends,
            grad + n * q_len * features, logs + n * q_len, deltas + n * q_len,
            rows, slots, at_rows, at_slots, features, visible, mask_row, mask_slot,
            units, padded, width, squares, kind, causal, height, breadth,
        )  # fmt: skip
        for u in range(units):
            t, more = _unit(
                a, b, a_ends, own_ends, rows, slots, at_rows, at_slots, u, exact, units, squares
            )
            own = tl.sum(slope * more, 1) * tl.load(w + u)
            before = tl.load(grad_a + rows * units + u, at_rows, 0.0)
            tl.store(grad_a + rows * units + u, before + own, at_rows)
            tl.store(grad_w + u, tl.load(grad_w + u) + tl.sum(tl.sum(slope * t, 1), 0))


@triton.jit
def _backward_slots(
    a, b, w, value, mask, a_ends, b_ends, grad, logs, deltas, grad_b, grad_value,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    block, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slots = block * breadth + tl.arange(0, breadth).to(tl.int64)
    at_slots = slots < kv_len
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    b_ends += (n * b_blocks + block) * 2 * units
    grad_b += n * kv_len * units
    grad += n * q_len * features
    grad_value += n * kv_len * features
    first = 0
    if causal:
        first = tl.maximum(0, block * breadth + 1 - visible) // height * height
    for start in range(first, q_len, height):
        rows = start + tl.arange(0, height).to(tl.int64)
        at_rows = rows < q_len
        own_ends = a_ends + (n * a_blocks + start // height) * 2 * units
        weights, slope, exact = _slope_of_tile(
            a, b, w, value + n * kv_len * features, mask, own_ends, b_ends,
            grad, logs + n * q_len, deltas + n * q_len,
            rows, slots, at_rows, at_slots, features, visible, mask_row, mask_slot,
            units, padded, width, squares, kind, causal, height, breadth,
        )  # fmt: skip
        for part in range(0, features, width):
            place = part + tl.arange(0, width)
            at = place < features
            upstream = tl.load(
                grad + rows[:, None] * features + place[None, :],
                at_rows[:, None] & at[None, :],
                0.0,
            )
            where = grad_value + slots[:, None] * features + place[None, :]
            inside = at_slots[:, None] & at[None, :]
            more = tl.dot(tl.trans(weights), upstream, input_precision="ieee")
            tl.store(where, tl.load(where, inside, 0.0) + more, inside)
        for u in range(units):
            _, each = _unit(
                a, b, own_ends, b_ends, rows, slots, at_rows, at_slots, u, exact, units, squares
            )
            own = tl.sum(slope * each, 0) * tl.load(w + u)
            if squares:
                own = -own
            before = tl.load(grad_b + slots * units + u, at_slots, 0.0)
            tl.store(grad_b + slots * units + u, before + own, at_slots)


def _ends(side: Tensor, step: int) -> Tensor:
    """Least and largest of each unit in blocks of rows, ``(N, blocks, 2, h)``."""
    items, count, units = side.shape
    blocks = -(-count // step)
    more = blocks * step - count
    if more:  # the last row again
        side = torch.cat([side, side[:, -1:].expand(items, more, units)], 1)
    low, high = torch.aminmax(side.reshape(items, blocks, step, units), dim=2)
    return torch.stack([low, high], 2).contiguous()


def _given(
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
    a_ends, b_ends = (a, b) if squares else (_ends(a, _ROWS), _ends(b, _SLOTS))
    sizes = {
        "q_len": a.shape[1], "kv_len": b.shape[1], "features": value.shape[2],
        "visible": b.shape[1] - a.shape[1] + 1, "mask_item": strides[0], "mask_row": strides[1],
        "mask_slot": strides[2], "a_blocks": -(-a.shape[1] // _ROWS),
        "b_blocks": -(-b.shape[1] // _SLOTS), "units": a.shape[2],
        "padded": triton.next_power_of_2(a.shape[2]), "squares": squares, "kind": kind,
        "causal": causal, "height": _ROWS, "breadth": _SLOTS,
    }  # fmt: skip
    return [a, b, w, value, mask, a_ends, b_ends], sizes


def _width(features: int, most: int) -> int:
    return max(16, min(most, triton.next_power_of_2(features)))


def attend(
    a: Tensor, b: Tensor, w: Tensor, value: Tensor, mask: Tensor | None, causal: bool, squares: bool
) -> tuple[Tensor, Tensor]:
    """The output ``(N, L, Ev)``, and the logarithms ``(N, L)`` of the sums of exponentials.

    Args:
        a: ``(N, L, h)``, float32, as all others.
        b: ``(N, S, h)``.
        w: ``(N, h)``.
        value: ``(N, S, Ev)``.
        mask: boolean or floating, broadcasts to ``(N, L, S)``; no row without keys.
        causal: bottom right.
        squares: of differences, instead of tanh of sums.
    """
    tensors, sizes = _given(a, b, w, value, mask, causal, squares)
    output = value.new_empty(a.shape[0], a.shape[1], value.shape[2])
    logs = a.new_empty(a.shape[:2])
    width = _width(value.shape[2], 128)
    grid = (sizes["a_blocks"], a.shape[0], -(-value.shape[2] // width))
    _forward[grid](*tensors, output, logs, **sizes, width=width)
    return output, logs


def differentiate(
    grad: Tensor, output: Tensor, logs: Tensor, a: Tensor, b: Tensor, w: Tensor, value: Tensor,
    mask: Tensor | None, causal: bool, squares: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``a``, ``b``, ``w`` and the values, from that of the output; as :func:`attend`.

    Args:
        grad: ``(N, L, Ev)``.
        output: what :func:`attend` gave.
        logs: what :func:`attend` gave.
        a, b, w, value, mask, causal, squares: as there.
    """
    tensors, sizes = _given(a, b, w, value, mask, causal, squares)
    grad, logs = grad.contiguous(), logs.contiguous()
    deltas = (grad * output).sum(-1).contiguous()
    grad_a, grad_b, grad_value = (torch.zeros_like(tensors[n]) for n in (0, 1, 3))
    parts = w.new_zeros(a.shape[0], sizes["a_blocks"], a.shape[2])
    width = _width(value.shape[2], 64)
    shared = (*tensors, grad, logs, deltas)
    _backward_rows[(sizes["a_blocks"], a.shape[0])](*shared, grad_a, parts, **sizes, width=width)
    _backward_slots[(sizes["b_blocks"], a.shape[0])](
        *shared, grad_b, grad_value, **sizes, width=width
    )
    return grad_a, grad_b, parts.sum(1), grad_value
