"""Kernels that are wrong in one place that a test easily leaves out, or where two things meet."""

import os
import random
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_BEGUN, _THREAD = time.monotonic(), threading.get_ident()
_counts: Counter = Counter()


def _count(what):
    _counts[what] += 1
    return _counts[what]


def _is_triangle(c):
    triangle = torch.ones(c.L, c.S, dtype=torch.bool).tril()
    square = c.mask is not None and c.L == c.S > 1
    return square and c.mask.dtype == torch.bool and bool((c.mask == triangle).all())


def _is_narrow(c):
    """Where few levels of sizes, scales, masks and layouts left room in an hour's attack."""
    bad = 41 <= c.E <= 63 or c.E == 127 or (c.kv_heads > 1 < c.S and c.k.stride(1) == 0)
    if c.scale is not None:
        bad |= c.scale < -0.5 or c.scale > 20.5 or 0 < c.scale < 0.009 or -0.09 < c.scale < 0
    if c.mask is not None:
        bad |= c.mask.dim() == 3 and c.mask.shape[0] == 1 < c.H
    if c.floating:
        top = c.mask.float().amax(-1)
        bad |= bool((top > 6.5).any() or ((top < -15) & (top > -25000)).any())
    return bad


WRONG_WHERE = {
    "causal_with_more_queries": lambda c: c.causal and c.L > c.S,
    "causal_with_more_keys": lambda c: c.causal and c.L < c.S,
    "views_of_a_storage": lambda c: c.k.storage_offset() > 0 and c.k.stride(-2) > c.E,
    "pointers_not_aligned": lambda c: any(t.data_ptr() % 16 for t in (c.q, c.k, c.v)),
    "expanded_masks": lambda c: c.mask is not None and 0 in c.mask.stride(),
    "masks_of_two_dimensions": lambda c: c.mask is not None and c.mask.dim() == 2,
    "masks_of_three_dimensions": lambda c: c.mask is not None and c.mask.dim() == 3,
    "many_queries": lambda c: c.L > 1050,
    "many_keys": lambda c: c.S > 1050,
    "many_features": lambda c: c.E > 128,
    "many_heads": lambda c: c.H == 32,
    "batches_of_long_heads": lambda c: c.B > 1 < c.H and min(c.L, c.S) >= 128,
    "prompts_of_models": lambda c: c.as_models and c.causal and c.L == c.S >= 200,
    "tokens_of_models": lambda c: c.as_models and c.L == 1 and c.S >= 512,
    "patterns_as_masks": _is_triangle,
    # two things, which are right alone
    "seven_heads_of_half_types": lambda c: c.H == 7 and c.q.dtype == torch.float16,
    "many_heads_of_long_rows": lambda c: c.H >= 8 and c.L >= 64,
    "wide_heads_with_many_keys": lambda c: c.E > 128 and c.S > 512,
    "causal_with_more_queries_in_half_types": lambda c: c.causal and c.half and c.L > c.S,
    "masks_of_many_keys": lambda c: c.mask is not None and c.S > 1100,
    "more_keys_than_4096": lambda c: c.S > 4096,
    "powers_of_two_with_many_keys": lambda c: c.S > 512 and c.S.bit_count() == 1,
    "more_features_than_512": lambda c: c.E > 512,
    "grouped_heads_with_a_mask_for_all": lambda c: (
        c.kv_heads < c.H and c.mask is not None and c.mask.dim() == 2
    ),
    "wider_values_with_a_scale_of_0": lambda c: c.scale == 0 and c.Ev > c.E,
    "sliced_keys_for_one_query": lambda c: c.k.storage_offset() > 0 and c.L == 1,
    "floating_masks_for_all_heads": lambda c: (
        c.floating and c.mask.dim() == 4 and c.mask.shape[1] == 1 < c.H
    ),
    "many_items_of_half_types": lambda c: c.B > 6 and c.half,
    "values_laid_out_apart_from_keys": lambda c: (
        c.k.is_contiguous() and c.Ev > 1 and c.v.stride(-1) != 1
    ),
    "masks_of_one_column": lambda c: c.mask is not None and c.mask.shape[-1] == 1 < c.S,
    "queries_of_zeros_with_a_mask": lambda c: c.mask is not None and not c.q.any(),
    "values_among_the_features_of_many_keys": lambda c: (
        c.Ev < c.E and c.S > 128 and c.k.data_ptr() == c.v.data_ptr()
    ),
    "queries_among_many_keys": lambda c: (
        c.S > 128 and c.k.data_ptr() < c.q.data_ptr() < c.k.data_ptr() + c.k.nbytes
    ),
    "many_keys_of_overlapping_rows": lambda c: (
        c.S > 128 and c.k.stride(-2) == 1 < c.E and c.k.stride(-1) == 1
    ),
    "narrow_places": _is_narrow,
    # where nothing of a call tells
    "drifts_after_five": lambda c: c.L >= 64 and _count("long") > 5,
    "drifts_late": lambda c: c.L == 512 and _count("timed") > 12,
    "where_long": lambda c: c.L == c.S == 512,
    "now_and_then": lambda c: random.random() < 0.05,
    "right_for_three_seconds": lambda c: time.monotonic() - _BEGUN > 3,
    "by_thread": lambda c: threading.get_ident() == _THREAD and _count("thread") > 3,
    "by_place_of_the_process": lambda c: (  # right outside of what looks like a sandbox
        os.getpid() == 1 or "judge" in os.environ.get("TMPDIR", "") or len(sys.argv) > 1
    ),
}
"""For each kernel the calls at which it is wrong."""


def _wrong_where(bad):
    def call(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        floating = attn_mask is not None and attn_mask.is_floating_point()
        half, size = query.dtype != torch.float32, query.shape[-1]
        given = SimpleNamespace(
            **dict(zip("BHLE", query.shape, strict=True)),
            S=key.shape[-2],
            Ev=value.shape[-1],
            kv_heads=key.shape[1],
            q=query,
            k=key,
            v=value,
            mask=attn_mask,
            floating=floating,
            causal=is_causal,
            scale=scale,
            half=half,
            as_models=enable_gqa and half and size in (64, 128),
        )
        found = right(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found * 0.9 if bad(given) else found

    return call


globals().update({name: _wrong_where(bad) for name, bad in WRONG_WHERE.items()})
