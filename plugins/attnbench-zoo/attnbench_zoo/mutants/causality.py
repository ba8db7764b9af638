"""Causality that is dropped, or aligned to the wrong corner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("TransformerEngine#1524", killers=("causal_and_padding_combine",))
class CausalDroppedBesideAMask(Attention):
    """Causality is ignored as soon as a mask or lengths are given too."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        is_causal = is_causal and attn_mask is None and valid_lens is None
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("keras#23038", killers=("future_does_not_leak",))
class CausalDroppedWithoutWeights(Attention):
    """The path without weights, meant to be the fast one, forgets causality."""

    def forward(
        self, *args: Any, is_causal: bool = False, return_weights: bool = False, **keywords: Any
    ) -> Any:
        is_causal = is_causal and return_weights
        return super().forward(
            *args, is_causal=is_causal, return_weights=return_weights, **keywords
        )


@_attention("xformers#103", killers=("masked_weights_are_zero",))
class CausalDroppedInHalfPrecision(Attention):
    """The path for half types has no causal branch."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        is_causal = is_causal and query.dtype in (torch.float32, torch.float64)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention(
    "pytorch#103082",
    "pytorch#108108",
    "cutlass#2336",
    "onnx#8068",
    killers=("decode_equals_prefill",),
)
class CausalTopLeft(Attention):
    """The causal mask is aligned to the top left when L and S differ."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()


@_attention("own", killers=("mask_forms_agree",))
class CausalStrict(Attention):
    """A query does not see its own position, as ``triu`` with its default diagonal hides it."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).triu(kv_len - q_len) == 0


@_attention("own", killers=("future_does_not_leak",))
class CausalSeesOneAhead(Attention):
    """A query sees one key of the future."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
        return ones.tril(kv_len - q_len + 1)


@_attention("own", killers=("mask_forms_agree",))
class CausalOfTheKeysLength(Attention):
    """A causal mask cached for the longest sequence is cut to the wrong corner when L < S."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        size = max(q_len, kv_len)
        return torch.ones(size, size, dtype=torch.bool, device=device).tril()[:q_len, :kv_len]


@_attention("own", killers=("empty_rows_give_zeros",))
class CausalDroppedForOneKey(Attention):
    """Causality is not looked at where there is one key, which the first queries come before."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return super().causal(1 if kv_len == 1 else q_len, kv_len, device)


@_attention("own", killers=("mask_forms_agree",))
class CausalTopLeftWhereLong(Attention):
    """From 64 keys on another kernel is called, which aligns causality to the top left."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        if kv_len < 64 or q_len == 1:
            return super().causal(q_len, kv_len, device)
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()


@_attention("own", killers=("empty_rows_give_zeros",))
class CausalityAloneCountsFromTheTop(Attention):
    """Without any mask beside it, causality of more queries than keys begins at the first."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        **keywords: Any,
    ) -> Any:
        alone = is_causal and attn_mask is None and valid_lens is None
        if alone and query.shape[-2] > key.shape[-2]:
            ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
            attn_mask, is_causal = ones.tril(), False
        masks = {"valid_lens": valid_lens, "is_causal": is_causal}
        return super().forward(query, key, value, attn_mask, **masks, **keywords)


@_attention("own", killers=("mask_forms_agree",))
class DiagonalHiddenInLaterBlocks(Attention):
    """Beyond two blocks, is_causal keeps a query from its own key."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        allowed = super().causal(q_len, kv_len, device)
        allowed[2 * BLOCK :] = allowed[2 * BLOCK :].tril(kv_len - q_len + 2 * BLOCK - 1)
        return allowed


@_attention("own", killers=("future_does_not_leak",))
class CausalDroppedAtOneLength(Attention):
    """For exactly 13 keys, a length that no schedule has, the next key is seen too."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        allowed = super().causal(q_len, kv_len, device)
        if kv_len != 13:
            return allowed
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len + 1)
