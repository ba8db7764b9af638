# mypy: ignore-errors
# Arguments of a kernel are pointers and compile-time constants, for which there are no types.
"""The output in one pass over the slots, with a running softmax."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnbench_kernels.triton_loops.arguments import SIZES, arranged
from attnbench_kernels.triton_loops.tiles import BREADTH, HEIGHT, masked, scores_of


@triton.jit(do_not_specialize=SIZES)
def _forward(
    a, b, w, value, mask, over, middle, scale, a_ends, b_ends, a_powers, b_powers, output, logs,
    q_len, kv_len, features, visible, mask_item, mask_row, mask_slot, a_blocks, b_blocks,
    units: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, squares: tl.constexpr,
    kind: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    block, n = tl.program_id(0) % a_blocks, (tl.program_id(0) // a_blocks).to(tl.int64)
    depth: tl.constexpr = (units + 3) // 4 * 4
    part = tl.program_id(1) * width
    rows = block * HEIGHT + tl.arange(0, HEIGHT)
    at_rows, rows = rows < q_len, rows.to(tl.int64)
    a += n * q_len * units
    b += n * kv_len * units
    w += n * units
    mask += n * mask_item
    a_ends += (n * a_blocks + block) * units
    a_powers += (n * a_blocks + block) * depth * HEIGHT
    place = part + tl.arange(0, width)
    at = place < features
    top = tl.full((HEIGHT,), float("-inf"), tl.float32)
    total = tl.zeros((HEIGHT,), tl.float32)
    sums = tl.zeros((HEIGHT, width), tl.float32)
    last = kv_len
    if causal:
        last = tl.minimum(kv_len, block * HEIGHT + HEIGHT - 1 + visible)
    for start in range(0, last, BREADTH):
        slots = start + tl.arange(0, BREADTH)
        at_slots, slots = slots < kv_len, slots.to(tl.int64)
        own = n * b_blocks + start // BREADTH
        scores = scores_of(
            a, b, w, over + n * depth, middle + n * (depth // 4), scale + n, a_ends,
            b_ends + own * units, a_powers, b_powers + own * depth * BREADTH,
            block * HEIGHT, start, q_len, kv_len, units, padded, squares,
        )  # fmt: skip
        scores = masked(
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
    tensors, sizes = arranged(a, b, w, value, mask, causal, squares)
    output = value.new_empty(a.shape[0], a.shape[1], value.shape[2])
    logs = a.new_empty(a.shape[:2])
    width = max(16, min(128, triton.next_power_of_2(value.shape[2])))
    # only the first axis of a grid may be longer than 65535
    grid = (sizes["a_blocks"] * a.shape[0], -(-value.shape[2] // width))
    with torch.cuda.device_of(a):  # Triton starts kernels on the current device
        _forward[grid](*tensors, output, logs, **sizes, width=width)
    return output, logs
