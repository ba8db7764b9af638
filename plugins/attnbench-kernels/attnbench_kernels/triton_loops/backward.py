# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""All gradients in two passes, one over blocks of queries and one over blocks of keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from attnbench_kernels.triton_loops.arguments import SIZES, arranged, blockwise, centred
from attnbench_kernels.triton_loops.tiles import BREADTH, HEIGHT, LANES, masked, scores_of
from attnbench_kernels.triton_loops.unit_sums import gather

_WIDTH = 16
"""Features of the values that a product of a tile takes at once: more do not fit in registers."""


@triton.jit
def _slopes(
    a, b, w, value, mask, over, middle, scale, a_ends, b_ends, a_powers, b_powers, grad, logs,
    deltas, row, slot, q_len, kv_len, features, visible, mask_row, mask_slot,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """Weights of a tile, and the gradient of its scores."""
    rows, slots = row + tl.arange(0, HEIGHT), slot + tl.arange(0, BREADTH)
    at_rows, at_slots = rows < q_len, slots < kv_len
    rows, slots = rows.to(tl.int64), slots.to(tl.int64)
    scores = scores_of(
        a, b, w, over, middle, scale, a_ends, b_ends, a_powers, b_powers, row, slot,
        q_len, kv_len, units, padded, squares,
    )  # fmt: skip
    scores = masked(
        scores, mask, rows, slots, at_rows, at_slots, mask_row, mask_slot, visible, kind, causal
    )
    log = tl.load(logs + rows, at_rows, 0.0)
    weights = tl.exp(scores - log[:, None])
    outer = tl.zeros((HEIGHT, BREADTH), tl.float32)
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
    return weights, weights * (outer - tl.load(deltas + rows, at_rows, 0.0)[:, None])


@triton.jit(do_not_specialize=SIZES)
def _backward_rows(
    a, b, w, value, mask, over, middle, scale, a_ends, b_ends, a_powers, b_powers, grad, logs,
    deltas, a_terms, b_terms, a_exponentials, b_exponentials, scratch, sums, parts,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, stride: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and its part of that of the weights of units."""
    block, n = tl.program_id(0) % a_blocks, (tl.program_id(0) // a_blocks).to(tl.int64)
    depth: tl.constexpr = (units + 3) // 4 * 4
    own = n * a_blocks + block
    scratch += own * HEIGHT * BREADTH
    last = kv_len
    if causal:
        last = tl.minimum(kv_len, block * HEIGHT + HEIGHT - 1 + visible)
    for start in range(0, last, BREADTH):
        other = n * b_blocks + start // BREADTH
        _, slopes = _slopes(
            a + n * q_len * units, b + n * kv_len * units, w + n * units,
            value + n * kv_len * features, mask + n * mask_item, over + n * depth,
            middle + n * (depth // 4), scale + n, a_ends + own * units, b_ends + other * units,
            a_powers + own * depth * HEIGHT, b_powers + other * depth * BREADTH,
            grad + n * q_len * features, logs + n * q_len, deltas + n * q_len,
            block * HEIGHT, start, q_len, kv_len, features, visible, mask_row, mask_slot,
            units, padded, width, squares, kind, causal,
        )  # fmt: skip
        rows, slots = tl.arange(0, HEIGHT), tl.arange(0, BREADTH)
        tl.debug_barrier()  # threads may still read the slopes of the tile before
        tl.store(scratch + slots[None, :] * HEIGHT + rows[:, None], slopes)
        tl.debug_barrier()
        gather(
            a_terms + own * HEIGHT * stride, b_terms + other * BREADTH * stride,
            a_exponentials + own * HEIGHT * stride, b_exponentials + other * BREADTH * stride,
            a_ends + own * units, b_ends + other * units, scratch, tl.sum(tl.sum(slopes, 1), 0),
            sums + own * HEIGHT * stride, parts + own * stride,
            units, padded, stride, chunk, squares, HEIGHT, BREADTH, True,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _backward_slots(
    a, b, w, value, mask, over, middle, scale, a_ends, b_ends, a_powers, b_powers, grad, logs,
    deltas, a_terms, b_terms, a_exponentials, b_exponentials, scratch, sums, grad_value,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr, stride: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    block, n = tl.program_id(0) % b_blocks, (tl.program_id(0) // b_blocks).to(tl.int64)
    depth: tl.constexpr = (units + 3) // 4 * 4
    own = n * b_blocks + block
    scratch += own * HEIGHT * BREADTH
    slots = block * BREADTH + tl.arange(0, BREADTH)
    at_slots, slots = slots < kv_len, slots.to(tl.int64)
    grad += n * q_len * features
    grad_value += n * kv_len * features
    first = 0
    if causal:
        first = tl.maximum(0, block * BREADTH + 1 - visible) // HEIGHT * HEIGHT
    for start in range(first, q_len, HEIGHT):
        other = n * a_blocks + start // HEIGHT
        weights, slopes = _slopes(
            a + n * q_len * units, b + n * kv_len * units, w + n * units,
            value + n * kv_len * features, mask + n * mask_item, over + n * depth,
            middle + n * (depth // 4), scale + n, a_ends + other * units, b_ends + own * units,
            a_powers + other * depth * HEIGHT, b_powers + own * depth * BREADTH,
            grad, logs + n * q_len, deltas + n * q_len,
            start, block * BREADTH, q_len, kv_len, features, visible, mask_row, mask_slot,
            units, padded, width, squares, kind, causal,
        )  # fmt: skip
        rows = start + tl.arange(0, HEIGHT)
        at_rows, rows = rows < q_len, rows.to(tl.int64)
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
        row, slot = tl.arange(0, HEIGHT), tl.arange(0, BREADTH)
        tl.debug_barrier()  # threads may still read the slopes of the tile before
        tl.store(scratch + row[:, None] * BREADTH + slot[None, :], slopes)
        tl.debug_barrier()
        gather(
            b_terms + own * BREADTH * stride, a_terms + other * HEIGHT * stride,
            b_exponentials + own * BREADTH * stride, a_exponentials + other * HEIGHT * stride,
            b_ends + own * units, a_ends + other * units, scratch, 0.0,
            sums + own * BREADTH * stride, sums,
            units, padded, stride, chunk, squares, BREADTH, HEIGHT, False,
        )  # fmt: skip


def chunk_of(units: int) -> int:
    """Hidden units that a pass over the slopes of a tile takes at once."""
    return max(LANES.value, min(128, triton.next_power_of_2(units)))


def _gathered(side: Tensor, step: int, stride: int) -> Tensor:
    """A side in blocks, ``(N, blocks, step, stride)``."""
    return pad(blockwise(side, step), (0, stride - side.shape[2])).contiguous()


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
    items, units = w.shape
    chunk = chunk_of(units)
    stride = -(-units // chunk) * chunk
    steps = HEIGHT.value, BREADTH.value
    terms = [_gathered(t, step, stride) for t, step in zip((a, b), steps, strict=True)]
    exponentials = terms
    if not squares:
        exponentials = [
            _gathered((2 * t).exp(), step, stride)
            for t, step in zip(centred(a, b), steps, strict=True)
        ]
    a_sums, b_sums = (torch.zeros_like(t) for t in terms)
    parts = w.new_zeros(items, sizes["a_blocks"], stride)
    grad_value = torch.zeros_like(tensors[3])
    programs = [sizes["a_blocks"] * items, sizes["b_blocks"] * items]
    scratch = w.new_empty(max(programs), *steps)
    shared = (*tensors, grad, logs, deltas, *terms, *exponentials, scratch)
    sizes |= {"width": _WIDTH, "stride": stride, "chunk": chunk}
    with torch.cuda.device_of(a):  # Triton starts kernels on the current device
        _backward_rows[(programs[0],)](*shared, a_sums, parts, **sizes)
        _backward_slots[(programs[1],)](*shared, b_sums, grad_value, **sizes)
    factor = (2 if squares else 4) * w[:, None]
    grad_a = a_sums.flatten(1, 2)[:, : a.shape[1], :units] * factor
    grad_b = b_sums.flatten(1, 2)[:, : b.shape[1], :units] * factor
    return grad_a, grad_b, parts.sum(1)[:, :units], grad_value
