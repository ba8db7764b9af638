"""The right twins: plain torch, in stages, so that a mistake is one overridden stage."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from tests.mutants.base import Twin

__all__ = ["ATTENTION", "DISTANCE", "HEADS", "Attention", "Distance", "Heads", "wide"]


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
        dead = ~allowed.any(-1, keepdim=True)
        return scores.masked_fill(~allowed, -math.inf).masked_fill(dead, 0.0)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, exactly 0 where a key is hidden."""
        return hidden.softmax(-1).masked_fill(~allowed, 0.0)

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        """Dropout on weights, in training only."""
        return nn.functional.dropout(weights, dropout_p, training=self.training)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        """The weighted sum of the values."""
        return weights @ value.to(weights.dtype)


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    raw = [math.exp(score - top) for score in scores]
    total = math.fsum(raw)
    return [x / total for x in raw]


def attend_by_floats(
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
    bias: Any = None,
) -> list[list[float]]:
    """Scaled dot-product attention of one item in Python floats.

    Args:
        query, key, value, allowed: rows.
        bias: ``bias(i, s)`` is added to the score of query ``i`` and key ``s``.
    """
    rows = []
    for i, q in enumerate(query):
        slots = [s for s in range(len(key)) if allowed[i][s]]
        scores = [
            math.fsum(a * b for a, b in zip(q, key[s], strict=True)) / math.sqrt(len(q))
            + (bias(i, s) if bias else 0.0)
            for s in slots
        ]
        weights = _softmax(scores) if slots else []
        rows.append(
            [
                math.fsum(w * value[s][e] for w, s in zip(weights, slots, strict=True))
                for e in range(len(value[0]))
            ]
        )
    return rows


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


class Distance(Attention):
    """The same, with a penalty of 0.5 for each step between query and key (ALiBi), and a window.

    Args:
        query_size, key_size, value_size: ignored but for their equality.
        before: how many keys before its own a query sees.
    """

    before = 3

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """The given mask and bias, with the window's and the penalty."""
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        distance = self.distance(query.shape[-2], key.shape[-2], query.device)
        return allowed & self.window(distance), bias + self.penalty(distance.to(bias.dtype))

    def distance(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """``(L, S)``: how many steps each key lies before each query."""
        queries = torch.arange(q_len, device=device).unsqueeze(-1)
        return queries - torch.arange(kv_len, device=device)

    def window(self, distance: Tensor) -> Tensor:
        """Which keys lie in the window."""
        return distance <= self.before

    def penalty(self, distance: Tensor) -> Tensor:
        """What is added to the scores: less, the further away."""
        return -0.5 * distance.abs()


def _distance_reference(
    _module: Distance,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    seen = [[may and i - s <= 3 for s, may in enumerate(row)] for i, row in enumerate(allowed)]
    return attend_by_floats(query, key, value, seen, lambda i, s: -0.5 * abs(i - s))


_POSITIONS = "its scores and its window, which may be empty, depend on where query and key stand"
_POSITIONAL = (
    "constant_values_come_back",
    "decode_equals_prefill",
    "equal_keys_get_equal_weight",
    "every_attendable_key_matters",
    "hidden_keys_stay_hidden_at_extreme_scores",
    "keys_permute_freely",
    "masking_equals_deleting",
    "output_lies_within_values",
    "queries_permute_freely",
    "query_alone_equals_query_among_others",
    "single_key_gets_weight_one",
    "weights_sum_to_one",
    "windows_end_at_their_edges",
)
DISTANCE = Twin(
    "distance",
    MechanismSpec(
        name="distance",
        make=Distance,
        formula="softmax(q·k / √E − |i − s| / 2) over s ≥ i − 3",
        source="Press et al. 2021, arXiv:2108.12409",
        equal_sizes=True,
        reference=_distance_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("pools_values",),
        exempt=dict.fromkeys(_POSITIONAL, _POSITIONS),
    ),
)


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


def _linear(layer: nn.Linear, rows: list[list[float]]) -> list[list[float]]:
    weight: list[list[float]] = layer.weight.tolist()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [
        [math.fsum([b, *(w * x for w, x in zip(line, row, strict=True))])
         for line, b in zip(weight, bias, strict=True)]
        for row in rows
    ]  # fmt: skip


def _heads_reference(
    module: Heads,
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
) -> list[list[float]]:
    layers = (module.query_proj, module.key_proj, module.value_proj)
    projected = [_linear(x, rows) for x, rows in zip(layers, (query, key, value), strict=True)]
    merged: list[list[float]] = [[] for _ in query]
    for head in range(module.heads):
        part = slice(4 * head, 4 * head + 4)
        q, k, v = ([row[part] for row in rows] for rows in projected)
        for row, more in zip(merged, attend_by_floats(q, k, v, allowed), strict=True):
            row.extend(more)
    output = _linear(module.out_proj, merged)
    return [row if any(may) else [0.0] * len(row) for row, may in zip(output, allowed, strict=True)]


HEADS = Twin(
    "heads",
    MechanismSpec(
        name="heads",
        make=Heads,
        formula="W_o [softmax(W_q q · W_k k / √d) W_v v]",
        source="Vaswani et al. 2017, arXiv:1706.03762",
        reference=_heads_reference,
    ),
)
