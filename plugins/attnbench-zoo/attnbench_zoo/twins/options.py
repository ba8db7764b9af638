"""Scaled dot-product attention with windows, soft caps, sinks and ALiBi's slopes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import MechanismSpec
from attnbench_zoo.base import Twin
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["OPTIONS", "Options"]


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


assert isinstance(ATTENTION.spec, MechanismSpec)
OPTIONS = Twin(
    "options",
    replace(
        ATTENTION.spec,
        name="options",
        make=Options,
        accepts=(*ATTENTION.spec.accepts, "window_size", "softcap", "sinks", "alibi_slopes"),
    ),
)
