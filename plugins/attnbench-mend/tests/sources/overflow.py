"""The scale comes after the product, which overflows half types."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None):
    scale = query.shape[-1] ** -0.5
    scores = (query @ key.mT) * scale  # wrong
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0) @ value


CONVENTIONS = {"empty_rows": "zeros", "hidden_slots": "finite", "gradients": False}
SPEC = sdpa(attention, conventions=CONVENTIONS)
