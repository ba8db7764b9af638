"""Padding hides queries in place of keys."""

import torch
from torch import nn

from attnbench import LayerSpec


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inside = nn.Linear(size, 3 * size)

    def forward(self, hidden, padding_mask=None):
        query, key, value = self.inside(hidden).chunk(3, -1)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if padding_mask is not None:
            shown = padding_mask[:, :, None]  # wrong
            scores = scores.masked_fill(~shown, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ value


SPEC = LayerSpec(name="padding", make=Attention, accepts=("padding_mask",))
