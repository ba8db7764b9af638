"""A window has one key less than it should before the query."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None, window_size=None):
    rows, keys = query.shape[-2], key.shape[-2]
    if window_size is not None:
        before, after = window_size
        ahead = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
        near = torch.ones(rows, keys, dtype=torch.bool)
        if before >= 0:
            near = near & (ahead > -before)  # wrong
        if after >= 0:
            near = near & (ahead <= after)
        if attn_mask is None:
            attn_mask = near
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & near
        else:
            attn_mask = attn_mask.masked_fill(~near, -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


SPEC = sdpa(attention, conventions={"empty_rows": "zeros", "hidden_slots": "finite"})
