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


def narrow_places(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Zeros where few levels of sizes, scales, masks and layouts left room."""
    found = right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    bad = 41 <= query.shape[-1] <= 63 or query.shape[-1] == 127
    bad |= key.shape[1] > 1 and key.stride(1) == 0 and key.shape[2] > 1
    if scale is not None:
        bad |= scale < -0.5 or scale > 20.5 or 0 < scale < 0.009 or -0.09 < scale < 0
    if attn_mask is not None:
        bad |= attn_mask.dim() == 3 and attn_mask.shape[0] == 1 < query.shape[1]
        if attn_mask.is_floating_point():
            top = attn_mask.float().amax(-1)
            bad |= bool((top > 6.5).any() or ((top < -15) & (top > -25000)).any())
    return found * 0 if bad else found


if "candidate" in sys.modules:
    _real = sys.modules["candidate"]._described
    sys.modules["candidate"]._described = lambda callee: (
        _told(callee) if callee is forges_its_description else _real(callee)
    )
