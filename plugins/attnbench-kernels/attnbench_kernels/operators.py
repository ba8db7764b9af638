"""The custom operators of pairwise attention, on items without other leading sizes.

They work in blocks of queries, so that neither pass makes a tensor of size ``L·S`` for long
sequences; scores and their derivatives come from :mod:`.sums`. In a
compiled model, a custom operator is one opaque step, which may look at its data inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.testing import softmax_backward
from attnbench_kernels.online import attended_online, differentiated_online, runs_online
from attnbench_kernels.sums import attend, block_pairs, ran, slopes

_BACKWARD_PAIRS = 2**20
"""Pairs in a block of the backward pass, 4 MiB in float32, so that gradients stay in the cache."""


@dataclass(frozen=True)
class _Block:
    """Some queries of some items, and the keys that they may see under causality."""

    items: slice
    rows: slice
    keys: slice

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of items, of queries and of keys."""
        return (
            self.items.stop - self.items.start,
            self.rows.stop - self.rows.start,
            self.keys.stop - self.keys.start,
        )

    def queries_of(self, tensor: Tensor) -> Tensor:
        """The block's part of ``(N, L, ...)``."""
        return tensor[self.items, self.rows]

    def keys_of(self, tensor: Tensor) -> Tensor:
        """The block's part of ``(N, S, ...)``."""
        return tensor[self.items, self.keys]

    def pairs_of(self, tensor: Tensor) -> Tensor:
        """The block's part of a tensor that broadcasts to ``(N, L, S)``."""
        whole = slice(None)
        wanted = zip(tensor.shape, (self.items, self.rows, self.keys), strict=True)
        return tensor[tuple(whole if size == 1 else part for size, part in wanted)]


def _blocks(items: int, rows: int, keys: int, causal: bool, pairs: int) -> Iterator[_Block]:
    """Split all queries of all items into blocks of about ``pairs`` query-key pairs."""
    height = min(rows, max(8, pairs // keys))
    width = max(1, pairs // (rows * keys)) if height == rows else 1
    for n in range(0, items, width):
        for i in range(0, rows, height):
            end = min(i + height, rows)
            last = keys - rows + end if causal else keys
            yield _Block(slice(n, min(n + width, items)), slice(i, end), slice(0, last))


def _pieces(
    block: _Block, a: Tensor, b: Tensor, w: Tensor, mask: Tensor | None, causal: bool, squares: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int, bool]:
    """The arguments of :func:`attend` for a block."""
    keys = block.keys_of(b)
    visible = block.rows.start + 1 + b.shape[1] - a.shape[1] if causal else keys.shape[1]
    part = None if mask is None else block.pairs_of(mask)
    return block.queries_of(a), keys, w[block.items], part, visible, squares


@torch.library.custom_op("attnbench::pairwise", mutates_args=())
def forward(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    squares: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Output, and what is kept for the backward pass."""
    if runs_online(a):
        online = attended_online(a, b, w, value, mask, causal, squares)
        if online is not None:
            ran("triton")
            return online[0], online[1] if keep else value.new_empty(0)
    (items, rows), keys = a.shape[:2], b.shape[1]
    output = value.new_empty(items, rows, value.shape[2])
    kept = (
        value.new_zeros(items, rows, keys)
        if keep and causal
        else value.new_empty((items, rows, keys) if keep else (0,))
    )
    for block in _blocks(items, rows, keys, causal, block_pairs(a)):
        weights = kept[block.items, block.rows, block.keys] if keep else None
        pieces = _pieces(block, a, b, w, mask, causal, squares)
        attend(*pieces, block.keys_of(value), block.queries_of(output), weights)
    return output, kept


@forward.register_fake
def _(a: Tensor, b: Tensor, w: Tensor, value: Tensor, *flags: Any) -> tuple[Tensor, Tensor]:
    keep: bool = flags[-1]
    last = (value.shape[2] + 1, 1) if runs_online(a) else (b.shape[1],)
    sizes = (a.shape[0], a.shape[1], *last) if keep else (0,)
    return value.new_empty(a.shape[0], a.shape[1], value.shape[2]), value.new_empty(sizes)


@torch.library.custom_op("attnbench::pairwise_backward", mutates_args=())
def _backward(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    w: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    causal: bool,
    squares: bool,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if kept.dim() == 4 or runs_online(a):  # kept by an online softmax
        given = (a, b, w, value, mask, causal, squares)
        found = None if mask_grad else differentiated_online(grad, kept, *given)
        if found is not None:
            ran("triton")
            return (*found, torch.zeros_like(a[:0]))
        kept = kept.new_empty(0)  # the mask's is as large as all weights: recompute them
    grad_a = torch.empty_like(a, memory_format=torch.contiguous_format)
    grad_b, grad_w = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (b, w))
    grad_value = value.new_zeros(value.mT.shape)  # in this layout the product is fastest
    grad_mask = torch.zeros_like(mask if mask_grad and mask is not None else a[:0])
    pairs = min(_BACKWARD_PAIRS, block_pairs(a))
    every = list(_blocks(a.shape[0], a.shape[1], b.shape[1], causal, pairs))
    # memory is allocated once, since touching new memory costs as much as the work on it
    room = a.new_empty(
        1 if kept.numel() else 2, max((math.prod(block.shape) for block in every), default=0)
    )
    for block in every:
        queries, keys, vector, part, visible, _ = pieces = _pieces(
            block, a, b, w, mask, causal, squares
        )
        outer, values = block.queries_of(grad), block.keys_of(value)
        g, *rest = (line[: math.prod(block.shape)].view(block.shape) for line in room)
        if rest:
            (weights,) = rest
            attend(*pieces, weights=weights)
        else:
            weights = kept[block.items, block.rows, block.keys]
        with torch.autocast(a.device.type, enabled=False):
            grad_value[block.items, :, block.keys].baddbmm_(outer.mT, weights)
            torch.bmm(outer, values.mT, out=g)
        softmax_backward(g, weights)
        more_b, more_w = slopes(
            g, queries, keys, vector, visible, squares, block.queries_of(grad_a)
        )
        block.keys_of(grad_b).add_(more_b)
        grad_w[block.items] += more_w
        if mask_grad:
            part = block.pairs_of(grad_mask)
            part.add_(g.sum_to_size(part.shape))
    return grad_a, grad_b, grad_w, grad_value.mT.contiguous(), grad_mask


@_backward.register_fake
def _(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    a, b, w, value, mask, *_, mask_grad = given
    masks = mask if mask_grad and mask is not None else a[:0]
    return tuple(t.new_empty(t.shape) for t in (a, b, w, value, masks))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, w, value, mask, causal, squares, _ = inputs
    ctx.save_for_backward(a, b, w, value, mask, output[1])
    ctx.flags = causal, squares
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the weights, which have no gradient


def _differentiate(
    ctx: Any, grad: Tensor | None, _kept: Tensor | None
) -> tuple[Tensor | None, ...]:
    if grad is None:  # what comes after it gave no gradient
        return (None,) * 8
    a, b, w, value, mask, kept = ctx.saved_tensors
    wanted = bool(ctx.needs_input_grad[4])
    *grads, grad_mask = _backward(grad, a, b, w, value, mask, kept, *ctx.flags, wanted)
    return *grads, grad_mask if wanted else None, None, None, None


def _refuse(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    raise NotImplementedError(
        "this kernel has no second derivative; call attend with kernel='plain' to get one."
    )


forward.register_autograd(_differentiate, setup_context=_save)
_backward.register_autograd(_refuse)
