"""Masks, lengths and causality that are read wrongly, and softmax along another axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("labmlai/annotated_deep_learning_paper_implementations#146")
class SoftmaxOverTheQueries(Attention):
    """The softmax is taken along the queries, so that each key's column sums to 1."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-2).nan_to_num(0.0).masked_fill(~allowed, 0.0)


@_attention("HsiaoYetGun/ESIM#5")
class SoftmaxOfATransposedBatch(Attention):
    """Every axis is turned round for the softmax, which is then taken over the first one."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(0).nan_to_num(0.0).masked_fill(~allowed, 0.0)


@_attention("ml-explore/mlx-lm#1626")
class MaskMixesHeadsOverOneKeyHead(Attention):
    """With one head of keys, each head of queries gets the bias of the first one."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **given: object,
    ) -> object:
        grouped = given.get("enable_gqa") and key.shape[-3] == 1 < query.shape[-3]
        if grouped and attn_mask is not None and attn_mask.dim() > 2 and attn_mask.shape[-3] > 1:
            attn_mask = attn_mask[..., :1, :, :]
        return super().forward(query, key, value, attn_mask, **given)


@_attention("speechbrain/speechbrain#3086")
class MaskAsWideAsTheLongestItem(Attention):
    """Lengths make a mask as wide as the longest item; what lies beyond it is seen by all."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        beyond = torch.arange(kv_len, device=query.device) >= valid_lens.max()
        return super().lengths(valid_lens, query, kv_len) | beyond


@_attention("ml-explore/mlx#2967")
class TopLeftWhereQueriesAreMore(Attention):
    """Causality is aligned to the bottom right, but to the top left where queries are more."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
        return ones.tril(max(kv_len - q_len, 0))


@_attention("huggingface/diffusers#14139")
class KeysCountedFromTheFirst(Attention):
    """A mask of keys is reduced to their number, and as many are taken from the first one on."""

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            rows = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])
            if torch.equal(rows, rows[..., :1, :].expand_as(rows)):
                attn_mask = torch.arange(key.shape[-2]) < rows.sum(-1, keepdim=True)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("jundot/omlx#3633")
class PaddedRowIsNanInHalf(Attention):
    """The number that hides a key is -inf in float16, so that a row without keys is NaN there."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.half_type = query.dtype == torch.float16
        return super().scores(query, key, scale)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if not self.half_type:
            return super().normalise(hidden, allowed)
        return hidden.masked_fill(~allowed, -torch.inf).softmax(-1)


@_attention("facebookresearch/fairseq#3365")
class WeightsAveragedOverHeads(Attention):
    """The weights handed back are the mean of all heads, though those of each were asked for."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *masks: Any, **given: Any) -> Any:
        found = super().forward(query, key, value, *masks, **given)
        if not given.get("return_weights") or query.dim() < 4:
            return found
        output, weights = found
        return output, weights.mean(-3, keepdim=True).expand_as(weights)


@_attention("hyunwoongko/transformer#40")
class LengthsHideTheQueries(Attention):
    """The mask of lengths is spread along the keys: it hides the queries beyond, and no key."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        if valid_lens.dim() > 1:
            return super().lengths(valid_lens, query, kv_len)
        lens = valid_lens.reshape(-1, *[1] * (query.dim() - 2))
        return (torch.arange(query.shape[-2], device=query.device) < lens).unsqueeze(-1)
