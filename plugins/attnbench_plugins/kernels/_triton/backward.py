# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""All gradients in two passes, one over blocks of queries and one over blocks of keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench_plugins.kernels._triton.arguments import SIZES, arranged, on_its_device
from attnbench_plugins.kernels._triton.tiles import is_exact, masked, scores_of, unit

__all__ = ["differentiate"]

_WIDTH = 16
"""Features of the values that a product of a tile takes at once: more do not fit in registers."""


@triton.jit
def _slopes(
    a, b, w, value, mask, a_ends, b_ends, a_powers, b_powers, grad, logs, deltas,
    rows, slots, at_rows, at_slots, features, visible, mask_row, mask_slot,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Weights of a tile, the gradient of its scores, and whether it takes tanh itself."""
    exact = True
    if not squares:
        exact = is_exact(a_ends, b_ends, units, padded)
    scores = scores_of(
        a, b, w, a_ends, b_ends, a_powers, b_powers, rows, slots, at_rows, at_slots, exact,
        units, squares, height, breadth,
    )  # fmt: skip
    scores = masked(
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


@triton.jit(do_not_specialize=SIZES)
def _backward_rows(
    a, b, w, value, mask, a_ends, b_ends, a_powers, b_powers, grad, logs, deltas, grad_a, grad_w,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and its part of that of the weights of units."""
    block, n = tl.program_id(0) % a_blocks, (tl.program_id(0) // a_blocks).to(tl.int64)
    rows = block * height + tl.arange(0, height).to(tl.int64)
    at_rows = rows < q_len
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    a_ends += (n * a_blocks + block) * 3 * units
    a_powers += (n * a_blocks + block) * ((units + 3) // 4 * 4) * height
    grad_a += n * q_len * units
    grad_w += (n * a_blocks + block) * units
    last = kv_len
    if causal:
        last = tl.minimum(kv_len, block * height + height - 1 + visible)
    for start in range(0, last, breadth):
        slots = start + tl.arange(0, breadth).to(tl.int64)
        at_slots = slots < kv_len
        own = n * b_blocks + start // breadth
        own_ends = b_ends + own * 3 * units
        own_powers = b_powers + own * ((units + 3) // 4 * 4) * breadth
        _, slope, exact = _slopes(
            a, b, w, value + n * kv_len * features, mask, a_ends, own_ends, a_powers, own_powers,
            grad + n * q_len * features, logs + n * q_len, deltas + n * q_len,
            rows, slots, at_rows, at_slots, features, visible, mask_row, mask_slot,
            units, padded, width, squares, kind, causal, height, breadth,
        )  # fmt: skip
        for u in range(units):
            t, more = unit(
                a, b, a_ends, own_ends, a_powers, own_powers, rows, slots, at_rows, at_slots,
                u, exact, units, squares, height, breadth,
            )  # fmt: skip
            more = tl.sum(slope * more, 1) * tl.load(w + u)
            before = tl.load(grad_a + rows * units + u, at_rows, 0.0)
            tl.store(grad_a + rows * units + u, before + more, at_rows)
            tl.store(grad_w + u, tl.load(grad_w + u) + tl.sum(tl.sum(slope * t, 1), 0))


@triton.jit(do_not_specialize=SIZES)
def _backward_slots(
    a, b, w, value, mask, a_ends, b_ends, a_powers, b_powers, grad, logs, deltas,
    grad_b, grad_value,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, height: tl.constexpr, breadth: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    block, n = tl.program_id(0) % b_blocks, (tl.program_id(0) // b_blocks).to(tl.int64)
    slots = block * breadth + tl.arange(0, breadth).to(tl.int64)
    at_slots = slots < kv_len
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    b_ends += (n * b_blocks + block) * 3 * units
    b_powers += (n * b_blocks + block) * ((units + 3) // 4 * 4) * breadth
    grad_b += n * kv_len * units
    grad += n * q_len * features
    grad_value += n * kv_len * features
    first = 0
    if causal:
        first = tl.maximum(0, block * breadth + 1 - visible) // height * height
    for start in range(first, q_len, height):
        rows = start + tl.arange(0, height).to(tl.int64)
        at_rows = rows < q_len
        own = n * a_blocks + start // height
        own_ends = a_ends + own * 3 * units
        own_powers = a_powers + own * ((units + 3) // 4 * 4) * height
        weights, slope, exact = _slopes(
            a, b, w, value + n * kv_len * features, mask, own_ends, b_ends, own_powers, b_powers,
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
            _, each = unit(
                a, b, own_ends, b_ends, own_powers, b_powers, rows, slots, at_rows, at_slots,
                u, exact, units, squares, height, breadth,
            )  # fmt: skip
            more = tl.sum(slope * each, 0) * tl.load(w + u)
            if squares:
                more = -more
            before = tl.load(grad_b + slots * units + u, at_slots, 0.0)
            tl.store(grad_b + slots * units + u, before + more, at_slots)


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
    tensors, sizes = arranged(a, b, w, value, mask, causal, squares)
    grad, logs = grad.contiguous(), logs.contiguous()
    deltas = (grad * output).sum(-1).contiguous()
    grad_a, grad_b, grad_value = (torch.zeros_like(tensors[n]) for n in (0, 1, 3))
    parts = w.new_zeros(a.shape[0], sizes["a_blocks"], a.shape[2])
    shared = (*tensors, grad, logs, deltas)
    items = a.shape[0]
    with on_its_device(a):
        _backward_rows[(sizes["a_blocks"] * items,)](*shared, grad_a, parts, **sizes, width=_WIDTH)
        _backward_slots[(sizes["b_blocks"] * items,)](
            *shared, grad_b, grad_value, **sizes, width=_WIDTH
        )
    return grad_a, grad_b, parts.sum(1), grad_value
