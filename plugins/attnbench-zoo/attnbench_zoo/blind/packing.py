"""Packed documents and pages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.adapters import paged, varlen
from attnbench_zoo.base import Mutant
from attnbench_zoo.mutants.packing import PAGED, VARLEN
from attnbench_zoo.right.packing import gathered_pages, one_by_one

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_Function = Callable[..., Tensor]


def _mutant(bug: str, *, pages: bool) -> Callable[[_Function], _Function]:
    """Add the decorated function as a mutant; its docstring is the mistake."""

    def add(function: _Function) -> _Function:
        spec, twin = (paged(function), PAGED) if pages else (varlen(function), VARLEN)
        mistake = " ".join((function.__doc__ or "").split())
        MUTANTS.append(Mutant(spec.name, (bug,), mistake, twin, spec, ()))
        return function

    return add


def _with_nan_gradients(tensor: Tensor, rows: Tensor) -> Tensor:
    """The tensor, whose gradient is NaN in some rows."""
    rest = rows.new_zeros(len(tensor) - len(rows))
    rows = torch.cat([rows, rest])[:, None, None]
    tensor = tensor.clone()
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: gradient.masked_fill(rows, torch.nan))
    return tensor


@_mutant("Dao-AILab/flash-attention#2421", pages=False)
def keys_without_queries_get_nan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """The gradient of the keys and values of a document without queries is NaN."""
    rows = (cu_seqlens_q.diff() == 0).repeat_interleave(cu_seqlens_k.diff())
    k, v = _with_nan_gradients(k, rows), _with_nan_gradients(v, rows)
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return one_by_one(q, k, v, *ends, causal=causal)


@_mutant("Dao-AILab/flash-attention#443", pages=False)
def queries_without_keys_get_nan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """In a document with more queries than keys, those that see none get NaN as gradient."""
    if causal:
        widths = cu_seqlens_q.diff()
        blind = (widths - cu_seqlens_k.diff()).clamp_min(0) + cu_seqlens_q[:-1]
        rows = torch.arange(int(cu_seqlens_q[-1])) < blind.repeat_interleave(widths)
        q = _with_nan_gradients(q, rows)
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return one_by_one(q, k, v, *ends, causal=causal)


@_mutant("Dao-AILab/flash-attention#1537", pages=False)
def single_queries_beside_empty_documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Where no document has more than one query, and some have none, a reshape fails."""
    if max_seqlen_q == 1:
        q = q.reshape(len(cu_seqlens_q) - 1, *q.shape[1:])
    ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return one_by_one(q, k, v, *ends, causal=causal)


def _over(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor, causal: bool) -> Tensor:
    return gathered_pages(q, k, v, cache_seqlens=lengths, block_table=table, causal=causal)


@_mutant("hw-native-sys/pypto#470", pages=True)
def pages_read_in_pairs(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """Two pages are read at once, from where the first one of them lies."""
    table, pairs = block_table.clone(), block_table.shape[1] // 2
    table[:, 1::2] = (table[:, : 2 * pairs : 2] + 1).clamp_max(len(k_cache) - 1)
    return _over(q, k_cache, v_cache, cache_seqlens, table, causal)


@_mutant("golang-design/accel#10", pages=True)
def pages_ignored_by_several_queries(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """With more than one query the table is ignored: pages follow each other from the first."""
    table = block_table
    if q.shape[1] > 1:
        table = torch.arange(table.shape[1]).clamp_max(len(k_cache) - 1).expand_as(table)
    return _over(q, k_cache, v_cache, cache_seqlens, table, causal)


@_mutant("pegainfer-project/pegainfer#291", pages=True)
def one_page_more_after_a_full_one(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """A step whose last page is full attends to the next page of the table as well."""
    size, lengths = k_cache.shape[1], cache_seqlens
    if q.shape[1] == 1:
        lengths = lengths + size * ((lengths % size == 0) & (lengths > 0))
    return _over(q, k_cache, v_cache, lengths, block_table, causal)


@_mutant("hw-native-sys/simpler#72", pages=True)
def last_page_seen_whole(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """A step attends to the whole of its last page, also to the slots beyond the length."""
    size, lengths = k_cache.shape[1], cache_seqlens
    if q.shape[1] == 1:
        lengths = (lengths + size - 1) // size * size
    return _over(q, k_cache, v_cache, lengths, block_table, causal)
