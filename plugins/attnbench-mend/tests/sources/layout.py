"""A view of tensors that may lie in any layout."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None):
    sizes = query.shape[:-1]
    if attn_mask is not None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)
    query = query.view(-1, *query.shape[-2:])  # wrong
    key, value = (t.reshape(-1, *t.shape[-2:]) for t in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return found.reshape(*sizes, value.shape[-1])


SPEC = sdpa(attention, conventions={"hidden_slots": "finite"})
