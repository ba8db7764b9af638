"""Self-attention over hidden states, with any positions, scoring function and cache.

The module of a scoring function may have the methods ``project_key(key)``, which returns
``(..., S, h)``, and ``score_projected(query, projected)``, which returns the scores; ``forward``
composes them. A layer then caches projected keys, so that a decoding step projects only its own
token, as in Bahdanau's decoder. For other scoring functions it caches the keys.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import make_scoring
from attnbench_plugins._projection import Projection
from attnbench_plugins.layers._positions import Positions

_TERMS = 2**24
"""Most numbers in a temporary tensor; beyond it, queries are scored in blocks."""


def legal_size(size: int, heads: int = 4) -> int:
    """The number of features nearest to ``size`` that splits into heads of even size."""
    return max(1, round(size / (2 * heads))) * 2 * heads


class SelfAttention(nn.Module):
    """Self-attention, causal or over all tokens; subclasses set positions, window and causality.

    Args:
        size: E, a multiple of ``2 * heads``.
        scoring: address of a scoring function, applied to heads of E / heads features.
        heads, kv_heads: number of query heads, and of key and value heads (a divisor of the
            former), each of which a group of query heads shares.
    """

    causal: ClassVar[bool] = True
    window: ClassVar[int | None] = None
    positioned: ClassVar[type[Positions]] = Positions

    def __init__(
        self, size: int, *, scoring: str = "scaled_dot", heads: int = 4, kv_heads: int = 2
    ) -> None:
        super().__init__()
        if min(size, heads, kv_heads) < 1 or heads % kv_heads or size % (2 * heads):
            raise attnbench.UsageError(
                f"size={size}, heads={heads}, kv_heads={kv_heads}: choose kv_heads that divides "
                "heads, and a size that is a multiple of 2 * heads."
            )
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, size // heads
        self.scoring = make_scoring(scoring, self.head_size, self.head_size)
        self.positions = self.positioned(size, heads)
        self.query_proj = Projection(size, size)
        self.key_proj = Projection(size, kv_heads * self.head_size)
        self.value_proj = Projection(size, kv_heads * self.head_size)
        self.out_proj = Projection(size, size)
        for proj in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.normal_(proj.weight, std=size**-0.5)

    def empty_slots(self, batch_size: int, slots: int) -> tuple[Tensor, Tensor]:
        """Zeros in the shapes that a cache stores, ``(B, kv_heads, slots, ·)``."""
        values = self.value_proj.weight.new_zeros(batch_size, self.kv_heads, slots, self.head_size)
        with torch.no_grad():
            return torch.zeros_like(_project_key(self.scoring, values)), values

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """Output ``(B, L, E)`` of hidden states ``(B, L, E)``, which are appended to the cache."""
        past = 0 if cache is None else cache.length
        slots = torch.arange(past + hidden.shape[1], device=hidden.device)
        where = slots[None, past:]
        if padding_mask is not None:
            where = (padding_mask.cumsum(-1) - 1).clamp_min(0)[:, past:]
            hidden = hidden.masked_fill(~padding_mask[:, past:, None], 0.0)
        hidden = self.positions.embed(hidden, where)
        query, key, value = (
            proj(hidden).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for proj in (self.query_proj, self.key_proj, self.value_proj)
        )
        query, key = self.positions.turn(query, where), self.positions.turn(key, where)
        scoring, first = self.scoring, 0
        if cache is not None:
            kept, value, first = cache.append(_project_key(scoring, key), value)
            if past:
                key = kept
                scoring = _OverKept(scoring) if hasattr(scoring, "project_key") else scoring
        heads = attnbench.attend(
            scoring,
            query.to(key.dtype),
            key,
            value.to(key.dtype),
            enable_gqa=self.kv_heads < self.heads,
            **self._masking(slots[past:], slots[first:], padding_mask),
        )
        output: Tensor = self.out_proj(heads.to(hidden.dtype).transpose(1, 2).flatten(2))
        return output

    def _masking(self, queries: Tensor, keys: Tensor, real: Tensor | None) -> dict[str, Any]:
        """The arguments of ``attend`` for causality, window, padding and bias by distance."""
        distance = queries[:, None] - keys
        bias = self.positions.bias(distance)
        if real is None and bias is None and self.window is None:
            return {"is_causal": self.causal}
        limit = math.inf if self.window is None else self.window
        allowed = (distance >= 0) & (distance < limit) if self.causal else distance.abs() < limit
        if real is not None:
            allowed = allowed & real[:, None, None, real.shape[-1] - len(keys) :]
        return {"attn_mask": allowed if bias is None else bias.masked_fill(~allowed, -math.inf)}


def _project_key(scoring: Any, key: Tensor) -> Tensor:
    """The projected keys that a cache stores, or the keys ``(B, H, S, D)`` themselves."""
    projected: Tensor = scoring.project_key(key) if hasattr(scoring, "project_key") else key
    return projected


class _OverKept(nn.Module):
    """Scores of queries and projected keys.

    Args:
        scoring: the module of the original scoring function.
    """

    def __init__(self, scoring: nn.Module) -> None:
        super().__init__()
        self.scoring: Any = scoring

    def forward(self, query: Tensor, kept: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of queries ``(..., L, D)`` and projected keys ``(..., S, h)``."""
        rows = max(1, _TERMS // max(1, kept.numel()))
        score, starts = self.scoring.score_projected, range(0, max(1, query.shape[-2]), rows)
        return torch.cat([score(query[..., i : i + rows, :], kept) for i in starts], -2)
