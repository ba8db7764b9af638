"""Mistakes with packed documents and with pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.adapters import paged, varlen
from attnbench_zoo.base import Mutant, Twin
from attnbench_zoo.right.packing import block_diagonal, gathered_pages, one_by_one, with_options

__all__ = ["MUTANTS", "PAGED", "VARLEN"]

MUTANTS: list[Mutant] = []
VARLEN = Twin("one_by_one", varlen(one_by_one))
OPTIONS = Twin("with_options", varlen(with_options))
PAGED = Twin("gathered_pages", paged(gathered_pages))


def _mutant(
    *bugs: str, killers: tuple[str, ...]
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Add the decorated function as a mutant; its docstring is the mistake."""

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        pages = killers == ("pages_are_invisible",)
        spec = (paged if pages else varlen)(function)
        mistake = " ".join((function.__doc__ or "").split())
        twin = PAGED if pages else VARLEN
        MUTANTS.append(Mutant(spec.name, bugs, mistake, twin, spec, killers))
        return function

    return add


_ALL = ("packed_equals_separate",)


@_mutant("transformers#46634", killers=_ALL)
def boundaries_lost_with_a_triangle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Boundaries are used where no mask is given, and a triangle is one."""
    if causal:
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q[[0, -1]], cu_seqlens_k[[0, -1]]
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return one_by_one(q, k, v, *ends, causal=causal)


@_mutant("maxtext#4476", "AReaL#1442", "axolotl#3796", killers=_ALL)
def segments_cast_to_bool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Numbers of documents become bool, so that all but the first are one."""
    ends = (cu_seqlens_q[[0, 1, -1]], cu_seqlens_k[[0, 1, -1]], max_seqlen_q, max_seqlen_k)
    return block_diagonal(q, k, v, *ends, causal=causal)


@_mutant("own", killers=_ALL)
def keys_by_the_offsets_of_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """With as many queries as keys, the documents of keys are taken to be those of queries."""
    if len(q) == len(k):
        cu_seqlens_k, max_seqlen_k = cu_seqlens_q, max_seqlen_q
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return one_by_one(q, k, v, *ends, causal=causal)


class _Unwritten(torch.autograd.Function):
    """The gradient of rows behind the last document is what the memory held."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, last: int) -> Tensor:
        ctx.last = last
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone()
        gradient[ctx.last :] = torch.nan
        return gradient, None


@_mutant("pytorch#176793", "TransformerEngine#1009", killers=("packed_slack_is_inert",))
def slack_gradients_never_written(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Gradients of rows behind the last document are never written."""
    last, last_key = int(cu_seqlens_q[-1]), int(cu_seqlens_k[-1])
    q = _Unwritten.apply(q, last)
    k, v = (_Unwritten.apply(tensor, last_key) for tensor in (k, v))
    ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return one_by_one(q, k, v, *ends, causal=causal)


@_mutant("flash-attention#2842", killers=("packed_equals_separate",))
def empty_document_writes_to_the_next(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """A document without tokens writes its zeros into the first row of the next one."""
    ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    output = one_by_one(q, k, v, *ends, causal=causal)
    empty = cu_seqlens_q[:-1][cu_seqlens_q.diff() == 0].long()
    rows = torch.zeros(len(q), 1, 1, dtype=torch.bool)
    rows[empty[empty < len(q)]] = True
    return output.masked_fill(rows, 0.0)


@_mutant("nanoVLM#204", killers=("packed_equals_separate",))
def triangle_at_the_top_left(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """The triangle of a document whose last queries are new begins at its first key."""
    if causal and len(cu_seqlens_q) > 2 and max_seqlen_q < max_seqlen_k:
        widths = cu_seqlens_q.diff()
        starts = [torch.arange(int(w)) + int(s) for w, s in zip(widths, cu_seqlens_k)]  # noqa: B905
        kept = torch.cat(starts)
        k, v, cu_seqlens_k = k[kept], v[kept], cu_seqlens_q
    ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return one_by_one(q, k, v, *ends, causal=causal)


def _over(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor, causal: bool) -> Tensor:
    return gathered_pages(q, k, v, cache_seqlens=lengths, block_table=table, causal=causal)


@_mutant("cudnn-frontend#737", killers=("pages_are_invisible",))
def pages_counted_from_lengths(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """Where a row begins follows from the lengths of those before, whatever the table says."""
    counts = -(-cache_seqlens // k_cache.shape[1])
    firsts = counts.cumsum(0) - counts
    table = firsts[:, None] + torch.arange(block_table.shape[1])
    return _over(q, k_cache, v_cache, cache_seqlens, table.clamp_max(len(k_cache) - 1), causal)


@_mutant("vllm#7018", killers=("pages_are_invisible",))
def pages_of_the_other_rows_are_zeros(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """Of a batch only the first row has its table; that of the others is zeros."""
    table = block_table.clone()
    table[1:] = 0
    return _over(q, k_cache, v_cache, cache_seqlens, table, causal)


@_mutant("pytorch#182593", killers=("pages_are_invisible",))
def pages_in_order_of_storage(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """Pages are read in the order in which they are stored."""
    table = block_table.clone()
    for row, length in enumerate((-(-cache_seqlens // k_cache.shape[1])).tolist()):
        table[row, :length] = table[row, :length].sort().values
    return _over(q, k_cache, v_cache, cache_seqlens, table, causal)


@_mutant("vllm#43810", killers=("pages_are_invisible",))
def last_page_read_to_its_end(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """The last page of a row is read to its end, beyond the tokens that it holds."""
    size = k_cache.shape[1]
    lengths = -(-cache_seqlens // size) * size if not causal else cache_seqlens
    return _over(q, k_cache, v_cache, lengths, block_table, causal)


def _with_options(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Add a mutant of the twin that takes options."""
    mistake = " ".join((function.__doc__ or "").split())
    spec = varlen(function)
    MUTANTS.append(Mutant(spec.name, ("own",), mistake, OPTIONS, spec, ("packed_equals_separate",)))
    return function


@_with_options
def window_over_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The window is left out where there is more than one document."""
    window = window_size if len(cu_seqlens_q) == 2 else (-1, -1)
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return with_options(q, k, v, *ends, causal, softmax_scale, window)


@_with_options
def groups_tiled_over_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Heads of keys are tiled over the groups where there is more than one document."""
    if len(cu_seqlens_q) > 2:
        k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1) for t in (k, v))
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return with_options(q, k, v, *ends, causal, softmax_scale, window_size)
