"""A row without keys gives NaN."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None):
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
    weights = scores.softmax(-1)  # wrong
    return weights @ value


SPEC = sdpa(
    attention, conventions={"empty_rows": "zeros", "hidden_slots": "finite", "gradients": False}
)
