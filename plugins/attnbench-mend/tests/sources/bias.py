"""A floating mask is taken off the scores."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None):
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        hidden = attn_mask == -torch.inf
        scores = (scores - attn_mask).masked_fill(hidden, -torch.inf)  # wrong
    return scores.softmax(-1).nan_to_num(0.0) @ value


SPEC = sdpa(attention, conventions={"empty_rows": "zeros", "hidden_slots": "finite"})
