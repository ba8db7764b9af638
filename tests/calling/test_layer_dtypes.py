"""What a few calls of a module on hidden states tell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import layer
from attnbench.subject.lookup import resolve


class SoftmaxInFloat32(nn.Module):
    """The lowest number of float64 is minus infinity in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        scores = query @ key.mT
        if attention_mask is not None:
            real = attention_mask[:, None].bool()
            scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def test_nan_for_an_item_of_padding_is_found_in_each_dtype() -> None:
    (subject,) = resolve(layer(SoftmaxInFloat32))
    assert subject.conventions.empty_rows == "nan"
    names = ["padded_tokens_are_inert", "gradients_are_right"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names)
    assert report.ok, str(report)
