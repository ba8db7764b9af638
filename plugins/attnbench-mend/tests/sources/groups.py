"""Heads of keys are repeated as a whole, and not one by one."""

import torch

from attnbench.adapters import sdpa


def attention(query, key, value, attn_mask=None, enable_gqa=False):
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat(1, groups, 1, 1)  # wrong
        value = value.repeat_interleave(groups, dim=-3)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


SPEC = sdpa(attention, conventions={"hidden_slots": "finite"})
