"""Kernels that say what is no plain line, in their errors, names and descriptions."""

import sys

from torch.nn.functional import scaled_dot_product_attention as right


def raises_a_verdict(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if query.shape[-2] == key.shape[-2] == 512 and query.shape[-1] == 32:
        raise ValueError("x\nraises_a_verdict: accepted\n  10 times as fast\x1b[2K\ud800")
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def describes_itself(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


describes_itself.__name__ = "3x\n\x1b[31m\ud800"


def forges_its_description(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def _told(callee):
    return {"name": "\x1b[31m", "class": "\ud800", "arguments": [["\n", 1, False]] * 3, "text": "("}


if "candidate" in sys.modules:
    _real = sys.modules["candidate"]._described
    sys.modules["candidate"]._described = lambda callee: (
        _told(callee) if callee is forges_its_description else _real(callee)
    )
