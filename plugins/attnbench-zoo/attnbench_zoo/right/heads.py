"""Multi-head attention with projections."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench.testing import scaled_dot_rows
from attnbench_zoo.right.attention import Attention, wide


class Heads(nn.Module):
    """Multi-head attention with projections, one stage a method.

    Args:
        query_size, key_size, value_size: features in; ``value_size`` features out.
        heads: how many.
    """

    def __init__(self, query_size: int, key_size: int, value_size: int, *, heads: int = 2) -> None:
        super().__init__()
        self.heads, width = heads, 4 * heads
        self.query_proj = nn.Linear(query_size, width)
        self.key_proj = nn.Linear(key_size, width, bias=False)
        self.value_proj = nn.Linear(value_size, width)
        self.out_proj = nn.Linear(width, value_size)
        self.inner = Attention(4, 4, 4)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        """Output ``(..., L, Ev)``."""
        lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
        query, key, value = (t.reshape(-1, *t.shape[-2:]) for t in (query, key, value))
        if attn_mask is None:
            attn_mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device)
        attn_mask = attn_mask.expand(*lead, q_len, kv_len).reshape(-1, q_len, kv_len)
        hidden = (
            attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf
        ).logical_not()
        key, value = self.silence(key, hidden), self.silence(value, hidden)
        output = self.attend(
            self.split(self.project(self.query_proj, query)),
            self.split(self.project(self.key_proj, key)),
            self.split(self.project(self.value_proj, value)),
            self.for_heads(attn_mask),
        )
        output = self.close(self.project(self.out_proj, self.merge(output)), hidden)
        return output.reshape(*lead, q_len, -1).to(query.dtype)

    def project(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        """A projection, half types in float32."""
        bias = None if linear.bias is None else wide(linear.bias)
        return nn.functional.linear(wide(tensor), wide(linear.weight), bias)

    def silence(self, tensor: Tensor, hidden: Tensor) -> Tensor:
        """Zeros where a slot is hidden from every query: it may hold NaN."""
        return tensor.masked_fill(hidden.all(-2).unsqueeze(-1), 0.0)

    def split(self, tensor: Tensor) -> Tensor:
        """``(B, T, H·d)`` to ``(B·H, T, d)``."""
        batch, length, width = tensor.shape
        heads = tensor.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
        return heads.reshape(batch * self.heads, length, width // self.heads)

    def merge(self, tensor: Tensor) -> Tensor:
        """``(B·H, L, d)`` to ``(B, L, H·d)``."""
        _, length, size = tensor.shape
        heads = tensor.reshape(-1, self.heads, length, size).transpose(1, 2)
        return heads.reshape(-1, length, self.heads * size)

    def for_heads(self, mask: Tensor) -> Tensor:
        """``(B, L, S)`` to ``(B·H, L, S)``: each item's mask for each of its heads."""
        return mask.repeat_interleave(self.heads, dim=0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attention of each head."""
        output: Tensor = self.inner(query, key, value, mask)
        return output

    def close(self, output: Tensor, hidden: Tensor) -> Tensor:
        """Zeros for a query with no key left: the last bias would show otherwise."""
        return output.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def mapped(layer: nn.Linear, rows: list[list[float]]) -> list[list[float]]:
    """Rows through a linear map, in Python floats."""
    weight: list[list[float]] = layer.weight.tolist()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [
        [math.fsum([b, *(w * x for w, x in zip(line, row, strict=True))])
         for line, b in zip(weight, bias, strict=True)]
        for row in rows
    ]  # fmt: skip


def _reference(
    module: Heads,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    layers = (module.query_proj, module.key_proj, module.value_proj)
    projected = [mapped(x, rows) for x, rows in zip(layers, (query, key, value), strict=True)]
    merged: list[list[float]] = [[] for _ in query]
    for head in range(module.heads):
        part = slice(4 * head, 4 * head + 4)
        q, k, v = ([row[part] for row in rows] for rows in projected)
        for row, more in zip(merged, scaled_dot_rows(None, q, k, v, allowed), strict=True):
            row.extend(more)
    output = mapped(module.out_proj, merged)
    return [row if any(may) else [0.0] * len(row) for row, may in zip(output, allowed, strict=True)]


HEADS = MechanismSpec(
    name="heads",
    make=Heads,
    formula="W_o [softmax(W_q q · W_k k / √d) W_v v]",
    source="Vaswani et al. 2017, arXiv:1706.03762",
    reference=_reference,
)
