"""Right attention, one stage a method: textbook, with options, and with a further key."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench.testing import scaled_dot_rows


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


ATTENTION = MechanismSpec(
    name="attention",
    make=Attention,
    formula="softmax(q·k / √E)",
    equal_sizes=True,
    reference=scaled_dot_rows,
    accepts=(
        "is_causal",
        "valid_lens",
        "dropout_p",
        "scale",
        "enable_gqa",
        "return_weights",
    ),
    laws=("pools_values",),
)


class Options(Attention):
    """``Attention`` that takes the options that callers use, each a method."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        **given: Any,
    ) -> Any:
        """As :meth:`Attention.forward`, with the options kept for the stages."""
        groups = query.shape[-3] // key.shape[-3] if given.get("enable_gqa") else 1
        self.given = (window_size, softcap, sinks, alibi_slopes, groups, is_causal)
        return super().forward(query, key, value, attn_mask, is_causal=is_causal, **given)

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """The masks with the window, and the bias with the slopes."""
        window, _, _, slopes, _, _ = self.given
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        steps = self.steps(query.shape[-2], key.shape[-2], query.device)
        if window is not None:
            allowed = allowed & self.window(steps, *window)
        if slopes is not None:
            bias = bias + self.slopes(steps, slopes.to(bias.dtype))
        return allowed, bias

    def steps(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """``(L, S)``: how many steps each key lies ahead of each query."""
        queries = torch.arange(q_len, device=device).unsqueeze(-1) + (kv_len - q_len)
        return torch.arange(kv_len, device=device) - queries

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        """Which keys lie in the window."""
        left = steps >= -before if before >= 0 else torch.ones_like(steps, dtype=torch.bool)
        return left & (steps <= after) if after >= 0 else left

    def slopes(self, steps: Tensor, slopes: Tensor) -> Tensor:
        """What is added to the scores for the distance."""
        return -slopes[:, None, None] * steps.abs()

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """The scores with the soft cap."""
        scores, cap = super().scores(query, key, scale), self.given[1]
        return scores if cap is None else self.cap(scores, cap)

    def cap(self, scores: Tensor, cap: float) -> Tensor:
        """The scores within ± cap."""
        return cap * (scores / cap).tanh()

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, less what the sink takes."""
        sinks = self.given[2]
        if sinks is None:
            return super().normalise(hidden, allowed)
        column = self.sink(sinks, hidden)
        weights = torch.cat([hidden, column], -1).softmax(-1)[..., :-1]
        return weights.masked_fill(~allowed, 0.0)

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        """``(..., H, L, 1)``: the score of the sink."""
        return sinks.to(hidden.dtype)[:, None, None].expand(*hidden.shape[:-1], 1)


OPTIONS = replace(
    ATTENTION,
    name="options",
    make=Options,
    accepts=(*ATTENTION.accepts, "window_size", "softcap", "sinks", "alibi_slopes"),
)


class Quiet(Attention):
    """A further key scores 0 and has no value."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        hidden = hidden.masked_fill(~allowed, -math.inf)
        top = hidden.amax(-1, keepdim=True).clamp_min(0.0)
        raw = (hidden - top).exp()
        return raw / (raw.sum(-1, keepdim=True) + (-top).exp())


QUIET = replace(
    ATTENTION,
    name="quiet",
    make=Quiet,
    reference=None,
    conventions={"extra_keys": 1},
    accepts=("is_causal",),
)
