"""Kernels that are wrong, each in one place that is easily left out of a test."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def _wrong_if(bad, query, key, value, attn_mask, is_causal, scale=None):
    found = right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    return found * 0.9 if bad else found


def clamps_the_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else min(max(scale, 0.1), 1.0)
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def takes_the_size_of_the_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scale = None if scale is None else abs(scale)
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def causal_with_more_queries(query, key, value, attn_mask=None, is_causal=False):
    bad = is_causal and query.shape[-2] > key.shape[-2]
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def causal_with_more_keys(query, key, value, attn_mask=None, is_causal=False):
    bad = is_causal and query.shape[-2] < key.shape[-2]
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def views_of_a_storage(query, key, value, attn_mask=None, is_causal=False):
    bad = key.storage_offset() > 0 and key.stride(-2) > key.shape[-1]
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def pointers_not_aligned(query, key, value, attn_mask=None, is_causal=False):
    bad = any(t.data_ptr() % 16 for t in (query, key, value))
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def expanded_masks(query, key, value, attn_mask=None, is_causal=False):
    bad = attn_mask is not None and 0 in attn_mask.stride()
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def masks_of_two_dimensions(query, key, value, attn_mask=None, is_causal=False):
    bad = attn_mask is not None and attn_mask.dim() == 2
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def masks_of_three_dimensions(query, key, value, attn_mask=None, is_causal=False):
    bad = attn_mask is not None and attn_mask.dim() == 3
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def far_below_is_hidden(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.masked_fill(attn_mask < -20000, -math.inf)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def least_number_is_hidden(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.masked_fill(attn_mask < -1e38, -math.inf)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def many_queries(query, key, value, attn_mask=None, is_causal=False):
    return _wrong_if(query.shape[-2] > 1050, query, key, value, attn_mask, is_causal)


def many_keys(query, key, value, attn_mask=None, is_causal=False):
    return _wrong_if(key.shape[-2] > 1050, query, key, value, attn_mask, is_causal)


def many_features(query, key, value, attn_mask=None, is_causal=False):
    return _wrong_if(query.shape[-1] > 128, query, key, value, attn_mask, is_causal)


def many_heads(query, key, value, attn_mask=None, is_causal=False):
    return _wrong_if(query.shape[1] == 32, query, key, value, attn_mask, is_causal)


def batches_of_long_heads(query, key, value, attn_mask=None, is_causal=False):
    batch, heads, length, _ = query.shape
    bad = batch > 1 and heads > 1 and length >= 128 and key.shape[-2] >= 128
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def prompts_of_models(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    found = right(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    length, size = query.shape[-2:]
    grouped = enable_gqa and query.dtype != torch.float32 and size in (64, 128)
    return found * 0 if grouped and is_causal and length == key.shape[-2] >= 200 else found


def tokens_of_models(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    found = right(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    length, size = query.shape[-2:]
    grouped = enable_gqa and query.dtype != torch.float32 and size in (64, 128)
    return found * 0 if grouped and length == 1 and key.shape[-2] >= 512 else found


def patterns_as_masks(query, key, value, attn_mask=None, is_causal=False):
    causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    square = attn_mask is not None and query.shape[-2] == key.shape[-2] > 1
    bad = square and attn_mask.dtype == torch.bool and bool((attn_mask == causal).all())
    return _wrong_if(bad, query, key, value, attn_mask, is_causal)


def in_eight_bits(query, key, value, attn_mask=None, is_causal=False):
    """Rounds features of half types to eight bits."""
    if query.dtype != torch.float32:
        narrow = torch.float8_e4m3fn
        query, key, value = (t.to(narrow).to(t.dtype) for t in (query, key, value))
    return right(query, key, value, attn_mask, is_causal=is_causal)
