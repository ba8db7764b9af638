"""Ring attention on one rank: its own queries, with keys and values that circulate.

Rank r of N holds a part of the queries and a part of the keys and values. In N - 1 steps each rank
passes its current keys and values to the next rank, and combines the results for the parts by the
log-sum-exp of their scores. In the backward pass the gradients of keys and values follow them and
reach their own rank with the last step. A rank sends ``(N - 1) / N · S · (Ek + Ev)`` numbers per
item forward, and twice as many backward, plus the gradients of the scoring function's parameters,
which are summed over the ranks: each rank needs every key once, and each key's gradient is a sum
over all ranks. Scores are computed for 64 queries at once, so that memory grows as S / N.
Source: Liu, Zaharia and Abbeel 2023, arXiv:2310.01889.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnbench.testing import scores_of

_ROWS = 64
"""Queries that are scored at once."""


def bounds(length: int, ranks: int) -> list[tuple[int, int]]:
    """Start and stop of each rank's part, as :func:`torch.tensor_split` cuts."""
    least, rest = divmod(length, ranks)
    ends = [least * rank + min(rank, rest) for rank in range(ranks + 1)]
    return list(itertools.pairwise(ends))


@dataclass(frozen=True)
class Shard:
    """A rank's part of a call.

    Args:
        query: ``(..., L_r, Eq)``.
        key, value: ``(..., S_r, Ek)`` and ``(..., S_r, Ev)``.
        allowed, bias: the rank's rows of the mask, ``(..., L_r or 1, S)``.
        is_causal: whether to hide the future, aligned to the bottom right.
        q_len, kv_len: L and S of all ranks together.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    allowed: Tensor | None
    bias: Tensor | None
    is_causal: bool
    q_len: int
    kv_len: int

    def chunks(self) -> Iterator[slice]:
        """Yield slices of the rank's queries to score at once."""
        for start in range(0, self.query.shape[-2], _ROWS):
            yield slice(start, min(start + _ROWS, self.query.shape[-2]))

    def hidden(self, rows: slice, cols: slice) -> Tensor | None:
        """The pairs that the mask hides, for some of the rank's queries and some of all keys."""
        hidden = None if self.allowed is None else ~_part(self.allowed, rows, cols)
        if not self.is_causal:
            return hidden
        first = bounds(self.q_len, dist.get_world_size())[dist.get_rank()][0]
        shift = first + self.kv_len - self.q_len
        device = self.query.device
        last = torch.arange(rows.start, rows.stop, device=device).unsqueeze(-1) + shift
        future = torch.arange(cols.start, cols.stop, device=device) > last
        return future if hidden is None else hidden | future

    def scores(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        hidden: Tensor | None,
    ) -> Tensor:
        """Masked scores in float32 or float64; hidden ones are ``-inf``."""
        scores = _wide(scores_of(module, query, key))
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        return scores if hidden is None else scores.masked_fill(hidden, float("-inf"))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _part(mask: Tensor, rows: slice, cols: slice) -> Tensor:
    """Rows and columns of a mask, which may have a single row for all queries."""
    return (mask if mask.shape[-2] == 1 else mask[..., rows, :])[..., cols]


def _shift(tensors: tuple[Tensor, ...], length: int) -> tuple[Tensor, ...]:
    """Send tensors to the next rank, and receive those of the previous, with ``length`` keys."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = tuple(t.new_empty(*t.shape[:-2], length, t.shape[-1]) for t in tensors)
    turns = [dist.P2POp(dist.isend, t.contiguous(), (rank + 1) % ranks) for t in tensors]
    turns += [dist.P2POp(dist.irecv, t, (rank - 1) % ranks) for t in received]
    turns = [turn for turn in turns if turn.tensor.numel()]
    for work in dist.batch_isend_irecv(turns) if turns else ():
        work.wait()
    return received


def forward(module: nn.Module, shard: Shard) -> tuple[Tensor, Tensor]:
    """The rank's output ``(..., L_r, Ev)`` and statistics ``(..., L_r, 2)``, in a wide dtype.

    The statistics are each row's largest score m and Σ exp(score − m). Their log-sum-exp is
    m + log Σ; as one number, it would round away the differences between huge scores.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = bounds(shard.kv_len, ranks)
    key, value = shard.key, shard.value
    output = _wide(shard.query).new_zeros(*shard.query.shape[:-1], value.shape[-1])
    largest = output.new_full((*output.shape[:-1], 1), float("-inf"))
    total = torch.zeros_like(largest)
    for step in range(ranks):
        cols = slice(*parts[(rank - step) % ranks])
        if step:
            key, value = _shift((key, value), cols.stop - cols.start)
        for rows in shard.chunks() if cols.stop > cols.start else ():
            hidden = shard.hidden(rows, cols)
            if hidden is not None and bool(hidden.all()):
                continue
            bias = None if shard.bias is None else _part(shard.bias, rows, cols)
            scores = shard.scores(module, shard.query[..., rows, :], key, bias, hidden)
            before = largest[..., rows, :]
            after = torch.maximum(before, scores.amax(-1, keepdim=True))
            base = _finite(after)
            weights, kept = (scores - base).exp(), (before - base).exp()
            output[..., rows, :] *= kept
            output[..., rows, :] += weights @ value.to(scores.dtype)
            total[..., rows, :] = total[..., rows, :] * kept + weights.sum(-1, keepdim=True)
            largest[..., rows, :] = after
    return output / total.masked_fill(total == 0, 1.0), torch.cat([largest, total], -1)


def _finite(largest: Tensor) -> Tensor:
    """Each row's largest score, or 0 for a row without keys, so that its weights are exp(-inf)."""
    return largest.masked_fill(largest == float("-inf"), 0.0)


def backward(
    module: nn.Module, shard: Shard, output: Tensor, statistics: Tensor, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of the rank's query, key, value and bias, and of all parameters.

    They are in a wide dtype.

    Args:
        module: the scoring function.
        shard: as in :func:`forward`.
        output, statistics: results of :func:`forward`.
        grad: gradient of the output.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = bounds(shard.kv_len, ranks)
    shared = [_wide(torch.zeros_like(p)) for p in module.parameters()]
    grads = _Gradients(
        module, shard, statistics, grad, (grad * output).sum(-1, keepdim=True), shared
    )
    key, value = shard.key, shard.value
    slopes: tuple[Tensor, ...] = ()
    for step in range(1, ranks):  # its own keys come last, with their gradients
        cols = slice(*parts[(rank - step) % ranks])
        key, value = _shift((key, value), cols.stop - cols.start)
        slopes = _shift(slopes, cols.stop - cols.start) if slopes else _zeros(key, value)
        grads.add(cols, key, value, *slopes)
    own = slice(*parts[rank])
    length = own.stop - own.start
    slopes = _shift(slopes, length) if slopes else _zeros(shard.key, shard.value)
    grads.add(own, shard.key, shard.value, *slopes)
    for one in shared:
        dist.all_reduce(one)
    return grads.query, *slopes, grads.bias, *shared


def _zeros(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(_wide(tensor)) for tensor in tensors)


class _Gradients:
    """The gradients that a rank sums over the parts of the keys."""

    def __init__(
        self,
        module: nn.Module,
        shard: Shard,
        statistics: Tensor,
        grad: Tensor,
        mean: Tensor,
        shared: list[Tensor],
    ) -> None:
        self.module, self.shard, self.grad, self.mean = module, shard, grad, mean
        largest, total = statistics[..., :1], statistics[..., 1:]
        self.base, self.total = _finite(largest), total.masked_fill(total == 0, 1.0)
        self.shared = shared
        (self.query,) = _zeros(shard.query)
        self.bias = None if shard.bias is None else _zeros(shard.bias)[0]

    def add(
        self, cols: slice, key: Tensor, value: Tensor, key_slope: Tensor, value_slope: Tensor
    ) -> None:
        """Add the contributions of a part of the keys; changes both slopes in place."""
        shard = self.shard
        for rows in shard.chunks() if cols.stop > cols.start else ():
            hidden = shard.hidden(rows, cols)
            if hidden is not None and bool(hidden.all()):
                continue
            query = shard.query[..., rows, :].detach().requires_grad_()
            keys = key.detach().requires_grad_()
            bias = None if shard.bias is None else _part(shard.bias, rows, cols)
            bias = None if bias is None else bias.detach().requires_grad_()
            with torch.enable_grad():
                scores = shard.scores(self.module, query, keys, bias, hidden)
            grad = self.grad[..., rows, :].to(scores.dtype)
            weights = (scores.detach() - self.base[..., rows, :]).exp() / self.total[..., rows, :]
            value_slope += weights.mT @ grad
            slope = weights * (grad @ value.to(scores.dtype).mT - self.mean[..., rows, :])
            if not scores.requires_grad:
                continue
            leaves = [query, keys, *([] if bias is None else [bias]), *self.module.parameters()]
            found = list(torch.autograd.grad(scores, leaves, slope, allow_unused=True))
            into = [self.query[..., rows, :], key_slope]
            into += [] if self.bias is None else [_part(self.bias, rows, cols)]
            for total, one in zip([*into, *self.shared], found, strict=True):
                if one is not None:
                    total += one
