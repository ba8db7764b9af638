"""Right attention that returns log-sums, takes scales of stored keys, and slices of the heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench.testing import scaled_dot_rows


class Stored(nn.Module):
    """Scaled dot-product attention that returns log-sums, and takes scales and a head offset."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        enable_gqa: bool = False,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        head_offset: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)`` and the log-sum-exp ``(..., L)``."""
        wide = torch.promote_types(query.dtype, torch.float32)
        q = query.to(wide)
        k, v = self.restore(key.to(wide), k_scale), self.restore(value.to(wide), v_scale)
        if enable_gqa:
            k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3) for t in (k, v))
        scores = self.add(self.scores(q, k), attn_mask, head_offset)
        if is_causal:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~past.tril(k.shape[-2] - q.shape[-2]), -math.inf)
        dead = scores.isneginf().all(-1, keepdim=True)
        weights = scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
        return (weights @ v).to(query.dtype), self.log_sums(scores, weights)

    def restore(self, stored: Tensor, scale: Tensor | None) -> Tensor:
        """Keys or values as they were before they were stored."""
        return stored if scale is None else stored * scale

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Scaled products."""
        return query * query.shape[-1] ** -0.5 @ key.mT

    def add(self, scores: Tensor, mask: Tensor | None, head_offset: int) -> Tensor:
        """Scores with the mask."""
        if mask is None:
            return scores
        hides = mask.dtype == torch.bool
        return scores.masked_fill(~mask, -math.inf) if hides else scores + mask.to(scores)

    def log_sums(self, scores: Tensor, weights: Tensor) -> Tensor:
        """The log-sum-exp of each row; -inf for a row without keys, where it has no gradient."""
        dead = scores.isneginf().all(-1)
        return (
            scores.masked_fill(dead.unsqueeze(-1), 0.0).logsumexp(-1).masked_fill(dead, -math.inf)
        )


class ByHead(Stored):
    """``Stored`` with a slope for each head, which falls by half from head to head."""

    def add(self, scores: Tensor, mask: Tensor | None, head_offset: int) -> Tensor:
        """Scores with the mask, less the distance."""
        q_len, kv_len = scores.shape[-2:]
        steps = torch.arange(q_len)[:, None] + kv_len - q_len - torch.arange(kv_len)
        heads = torch.arange(scores.shape[-3])[:, None, None] if scores.dim() > 2 else 0
        slopes = 0.5 ** (1.0 + self.first(head_offset) + heads)
        return super().add(scores - slopes * steps.abs().to(scores), mask, 0)

    def first(self, head_offset: int) -> int:
        """The number of the first head."""
        return head_offset


_COMMON: dict[str, Any] = {
    "equal_sizes": True,
    "returns": ("output", "lse"),
    "conventions": {"hidden_slots": "finite"},
}
STORED = MechanismSpec(
    name="stored",
    make=Stored,
    reference=scaled_dot_rows,
    accepts=("is_causal", "enable_gqa", "k_scale", "v_scale"),
    laws=("pools_values", "splits_merge", "heads_may_be_split"),
    **_COMMON,
)
BY_HEAD = MechanismSpec(
    name="by_head",
    make=ByHead,
    accepts=("is_causal", "head_offset"),
    laws=("pools_values", "heads_may_be_split"),
    **{
        **_COMMON,
        "conventions": {**_COMMON["conventions"], "per_head": True, "positions": "relative"},
    },
)
