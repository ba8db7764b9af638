"""The query of the caller is changed."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None, scale=None):
    factor = query.shape[-1] ** -0.5
    if scale is not None:
        query *= scale / factor  # wrong
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


SPEC = sdpa(attention, conventions={"hidden_slots": "finite", "gradients": False})
