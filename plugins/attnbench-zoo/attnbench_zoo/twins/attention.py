"""Scaled dot-product attention, the twin of most mutants."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench_zoo.base import Twin
from attnbench_zoo.twins.floats import attend_by_floats

__all__ = ["ATTENTION", "Attention", "wide"]


def wide(tensor: Tensor) -> Tensor:
    """Half types as float32, all others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Attention(nn.Module):
    """Scaled dot-product attention with every mask, one stage a method."""

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_weights: bool = False,
    ) -> Any:
        """Output ``(..., L, Ev)``, with ``return_weights`` also the weights ``(..., L, S)``."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = self.expand_heads(key, groups), self.expand_heads(value, groups)
        allowed, bias = self.mask(query, key, attn_mask, valid_lens, is_causal)
        key, value = self.silence_key(key, allowed), self.silence_value(value, allowed)
        scores = self.scores(query, key, self.scale(query, key, scale))
        weights = self.normalise(self.hide(scores + bias, allowed), allowed)
        output = self.pool(self.drop(weights, dropout_p), value).to(query.dtype)
        return (output, weights.to(query.dtype)) if return_weights else output

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        """Each head of key or value repeated for its group of query heads."""
        return tensor.repeat_interleave(groups, dim=-3)

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """What each query may attend to, and what is added to the scores."""
        q_len, kv_len = query.shape[-2], key.shape[-2]
        allowed = torch.ones(*query.shape[:-1], kv_len, dtype=torch.bool, device=query.device)
        bias = torch.zeros((), dtype=wide(query).dtype, device=query.device)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            allowed = allowed & attn_mask
        elif attn_mask is not None:
            hidden = attn_mask == -math.inf
            allowed, bias = allowed & ~hidden, wide(attn_mask.masked_fill(hidden, 0.0))
        if valid_lens is not None:
            allowed = allowed & self.lengths(valid_lens, query, kv_len)
        if is_causal:
            allowed = allowed & self.causal(q_len, kv_len, query.device)
        return allowed, bias

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        """``(B, 1, ..., L or 1, S)``: the keys before each item's, or query's, length."""
        rows = valid_lens.shape[1] if valid_lens.dim() == 2 else 1
        lens = valid_lens.reshape(-1, *[1] * (query.dim() - 3), rows, 1)
        return torch.arange(kv_len, device=query.device) < lens

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """``(L, S)``, aligned to the bottom right."""
        ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
        return ones.tril(kv_len - q_len)

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        """Zeros where a slot is hidden from every query: it may hold NaN."""
        return tensor.masked_fill(~allowed.any(-2).unsqueeze(-1), 0.0)

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        """The key without what no query may see."""
        return self.silence(key, allowed)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        """The value without what no query may see."""
        return self.silence(value, allowed)

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        """What the scores are multiplied by."""
        return query.shape[-1] ** -0.5 if given is None else given

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """Scores ``(..., L, S)``; scaled before the product, which could overflow."""
        return (wide(query) * scale) @ wide(key).mT

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """-inf where a key is hidden; a row without keys is zeros, since -inf alone gives NaN."""
        empty = ~allowed.any(-1, keepdim=True)
        return scores.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, exactly 0 where a key is hidden."""
        return hidden.softmax(-1).masked_fill(~allowed, 0.0)

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        """Dropout on weights, in training only."""
        return nn.functional.dropout(weights, dropout_p, training=self.training)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum of the values."""
        return weights @ value.to(weights.dtype)


def _reference(
    _module: Attention,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    return attend_by_floats(query, key, value, allowed)


ATTENTION = Twin(
    "attention",
    MechanismSpec(
        name="attention",
        make=Attention,
        formula="softmax(q·k / √E)",
        equal_sizes=True,
        reference=_reference,
        accepts=(
            "is_causal",
            "valid_lens",
            "dropout_p",
            "scale",
            "enable_gqa",
            "return_weights",
        ),
        laws=("pools_values",),
    ),
)
