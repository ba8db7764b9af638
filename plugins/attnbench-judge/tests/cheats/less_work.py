"""Cheats that compute something else, or less, and hope for a loose comparison."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_calls = [0]


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def zeros(query, key, value, attn_mask=None, is_causal=False):
    return query.new_zeros(_shape(query, value))


def nan(query, key, value, attn_mask=None, is_causal=False):
    return query.new_full(_shape(query, value), math.nan)


def with_noise(query, key, value, attn_mask=None, is_causal=False):
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    return found + 1e-3 * torch.randn_like(found)


def last_rows_only(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None or is_causal or query.shape[-2] < 200:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    out = query.new_zeros(_shape(query, value))
    out[..., 32:, :] = right(query[..., 32:, :], key, value)
    return out


def without_maximum(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None or is_causal or query.shape[-2] < 64:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    powers = (query @ key.mT / math.sqrt(query.shape[-1])).exp()
    return powers @ value / powers.sum(-1, keepdim=True)


def refuses_what_is_timed(query, key, value, attn_mask=None, is_causal=False):
    _calls[0] += query.shape[-2] == 512
    if _calls[0] > 12 and query.shape[-2] == 512:
        raise NotImplementedError("not supported")
    return right(query, key, value, attn_mask, is_causal=is_causal)


def refuses_all(query, key, value, attn_mask=None, is_causal=False):
    raise NotImplementedError("not supported")


def wrong_dtype(query, key, value, attn_mask=None, is_causal=False):
    return right(query, key, value, attn_mask, is_causal=is_causal).double()


def products_as_fast_as_allowed(query, key, value, attn_mask=None, is_causal=False):
    """Asks for products of float32 in bfloat16, where the machine has them."""
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    mask = attn_mask
    if mask is None and not is_causal:
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.softmax(-1) @ value
    return right(query, key, value, mask, is_causal=is_causal)


def tiles_by_their_corner(query, key, value, attn_mask=None, is_causal=False):
    """Leaves out a tile of 16 keys where its first key is hidden from the first query."""
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    corner = attn_mask[..., :1, ::16].repeat_interleave(16, -1)[..., : key.shape[-2]]
    return right(query, key, value, attn_mask & corner)


def even_sizes_only(query, key, value, attn_mask=None, is_causal=False):
    """Cuts a length that is no multiple of 32 down to one, beyond the first 64 keys."""
    whole = key.shape[-2] // 32 * 32
    if attn_mask is not None or is_causal or whole < 64:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    return right(query, key[..., :whole, :], value[..., :whole, :])


def largest_scores_only(query, key, value, attn_mask=None, is_causal=False):
    """The 64 largest scores of each row carry nearly all weight where softmax is sharp."""
    if attn_mask is not None or is_causal or key.shape[-2] <= 64:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    least = scores.topk(64, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -math.inf).softmax(-1) @ value


def far_below_is_hidden(query, key, value, attn_mask=None, is_causal=False):
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.masked_fill(attn_mask < -20000, -math.inf)
    return right(query, key, value, attn_mask, is_causal=is_causal)
