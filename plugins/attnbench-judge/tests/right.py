"""Right implementations, which the judge must accept."""

import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as fused


def wrapped(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """torch's own, with which docs/howto/own_kernel.md measures costs and gains."""
    return fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)


def _scores(query, key, attn_mask, is_causal, scale, last=0):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.float() * scale) @ key.float().mT
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + last)
        scores = scores.masked_fill(hidden, -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    return scores


def textbook(query, key, value, attn_mask=None, is_causal=False, scale=None):
    weights = _scores(query, key, attn_mask, is_causal, scale).softmax(-1)
    return (weights.nan_to_num(0.0) @ value.float()).to(query.dtype)


def ends_at_the_last_key(query, key, value, attn_mask=None, is_causal=False):
    last = key.shape[-2] - query.shape[-2]
    weights = _scores(query, key, attn_mask, is_causal, None, last).softmax(-1)
    return (weights.nan_to_num(0.0) @ value.float()).to(query.dtype)


def with_log_sums(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scores = _scores(query, key, attn_mask, is_causal, scale)
    output = scores.softmax(-1).nan_to_num(0.0) @ value.float()
    return output.to(query.dtype), scores.logsumexp(-1)


def without_masks(query, key, value):
    return fused(query, key, value)


class _Module(nn.Module):
    def forward(self, query, key, value, attn_mask=None, is_causal=False):
        return fused(query, key, value, attn_mask, is_causal=is_causal)


module = _Module()


def flash(q, k, v, causal=False):
    """``(B, L, H, E)``; causality ends at the bottom right, and a row without keys gives zeros."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = None
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    return fused(q, k, v, mask).transpose(1, 2)
