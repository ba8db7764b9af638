"""Causality ends at the top left, where L differs from S."""

import torch

from attnbench.adapters import flash


def attention(q, k, v, causal=False):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()  # wrong
        empty = ~seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0)
        return ((scores.softmax(-1) * ~empty) @ v).transpose(1, 2)
    return (scores.softmax(-1) @ v).transpose(1, 2)


SPEC = flash(attention, conventions={"causal": "bottom_right", "hidden_slots": "finite"})
