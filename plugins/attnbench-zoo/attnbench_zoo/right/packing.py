"""Right functions of packed documents and of pages, with flash-attention's signatures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.adapters import paged, varlen


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """``(L, H, E)`` of one document; causality ends at the bottom right."""
    q_len, kv_len = len(query), len(key)
    mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len) if causal else None
    query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(0, 1)


def one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Each document by itself; zeros in rows of none."""
    output = torch.zeros(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    ends = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:])  # noqa: B905
    for first, last, first_key, last_key in (tuple(map(int, end)) for end in ends):
        if first < last and first_key < last_key:
            keys = slice(first_key, last_key)
            output[first:last] = _attend(q[first:last], k[keys], v[keys], causal)
    return output


def with_options(
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
    """Each document by itself, with grouped heads, a scale and a window."""
    rows = []
    ends = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:])  # noqa: B905
    for first, last, first_key, last_key in (tuple(map(int, end)) for end in ends):
        query = q[first:last].transpose(0, 1)
        key, value = (t[first_key:last_key].transpose(0, 1) for t in (k, v))
        q_len, kv_len = query.shape[1], key.shape[1]
        steps = torch.arange(kv_len) - torch.arange(kv_len - q_len, kv_len)[:, None]
        before, after = window_size
        seen = (steps >= -before) if before >= 0 else torch.ones_like(steps, dtype=torch.bool)
        seen = seen & (steps <= after) if after >= 0 else seen
        seen = seen & (steps <= 0) if causal else seen
        found = scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=softmax_scale, enable_gqa=True
        )
        rows.append(found.transpose(0, 1))
    none = q.new_zeros(len(q) - int(cu_seqlens_q[-1]), q.shape[1], v.shape[-1])
    return torch.cat([*rows, none])


def block_diagonal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """One call with a mask that is True where query and key are of one document."""
    rows, columns = torch.arange(len(q)), torch.arange(len(k))
    own = torch.bucketize(rows, cu_seqlens_q[1:], right=True)
    theirs = torch.bucketize(columns, cu_seqlens_k[1:], right=True)
    documents = len(cu_seqlens_q) - 1
    allowed = (own[:, None] == theirs) & (own < documents)[:, None]
    if causal:
        ends = torch.nn.functional.pad(cu_seqlens_k[1:] - cu_seqlens_q[1:], (0, 1))
        allowed &= columns <= (rows + ends[own])[:, None]
    dead = ~allowed.any(1)
    scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~(allowed | dead[:, None]), -torch.inf).softmax(-1)
    weights = weights.masked_fill(dead[:, None], 0.0)
    return torch.einsum("hqk,khe->qhe", weights, v)


def gathered_pages(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    block_table: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The pages of each row put together, and cut to its length."""
    assert cache_seqlens is not None
    assert block_table is not None
    rows = []
    for query, length, pages in zip(q, cache_seqlens.tolist(), block_table.long(), strict=True):
        keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        rows.append(_attend(query, keys, values, causal))
    return torch.stack(rows)


VARLEN = varlen(one_by_one)
OPTIONS = varlen(with_options)
PAGED = paged(gathered_pages)
