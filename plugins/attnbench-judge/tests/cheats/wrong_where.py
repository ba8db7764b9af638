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


WRONG_WHERE = {
    "causal_with_more_queries": lambda c: c.causal and c.L > c.S,
    "views_of_a_storage": lambda c: c.k.storage_offset() > 0 and c.k.stride(-2) > c.E,
    "many_keys": lambda c: c.S > 1050,
    "prompts_of_models": lambda c: c.as_models and c.causal and c.L == c.S >= 200,
    "tokens_of_models": lambda c: c.as_models and c.L == 1 and c.S >= 512,
    "patterns_as_masks": _is_triangle,
    # two things, which are right alone
    "seven_heads_of_half_types": lambda c: c.H == 7 and c.q.dtype == torch.float16,
    "more_keys_than_4096": lambda c: c.S > 4096,
    "values_laid_out_apart_from_keys": lambda c: (
        c.k.is_contiguous() and c.Ev > 1 and c.v.stride(-1) != 1
    ),
    "queries_of_zeros_with_a_mask": lambda c: c.mask is not None and not c.q.any(),
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
        half, size = query.dtype != torch.float32, query.shape[-1]
        given = SimpleNamespace(
            **dict(zip("BHLE", query.shape, strict=True)),
            S=key.shape[-2],
            Ev=value.shape[-1],
            q=query,
            k=key,
            v=value,
            mask=attn_mask,
            causal=is_causal,
            as_models=enable_gqa and half and size in (64, 128),
        )
        found = right(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found * 0.9 if bad(given) else found

    return call


globals().update({name: _wrong_where(bad) for name, bad in WRONG_WHERE.items()})
