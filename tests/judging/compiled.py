"""A right implementation that needs a compiler; alone, since its import takes seconds."""

import math

import torch


@torch.compile(dynamic=True)
def compiled(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.float() * scale) @ key.float().mT
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    return (scores.softmax(-1).nan_to_num(0.0) @ value.float()).to(query.dtype)
