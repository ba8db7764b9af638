"""Leaves a process that was begun while it was imported."""

import os
import time

from torch.nn.functional import scaled_dot_product_attention as right

if os.fork() == 0:
    time.sleep(3600)
    os._exit(0)


def attention(query, key, value, attn_mask=None, is_causal=False):
    return right(query, key, value, attn_mask, is_causal=is_causal)
