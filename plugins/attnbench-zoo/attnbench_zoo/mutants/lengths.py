"""Valid lengths that are ignored, count the wrong keys, or are those of another item or query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("Transformer-Neural-Network#15", killers=("valid_lengths_count_the_keys",))
class LengthOneTooLong(Attention):
    """``<=`` instead of ``<``: the first key of the padding is seen."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths(valid_lens + 1, query, kv_len)


@_attention("own", killers=("valid_lengths_count_the_keys",))
class LengthOneTooShort(Attention):
    """The last valid key is taken for padding."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths((valid_lens - 1).clamp_min(1), query, kv_len)


@_attention("own", killers=("mask_forms_agree",))
class LengthsOfTheFirstQuery(Attention):
    """Of lengths ``(B, L)`` only those of the first query are used."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        lens = valid_lens if valid_lens.dim() == 1 else valid_lens[:, 0]
        return super().lengths(lens, query, kv_len)


@_attention("own", killers=("masked_weights_are_zero",))
class LengthsOverTheLastLeadingSize(Attention):
    """Lengths are laid over the heads where there are as many heads as items."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        inside = super().lengths(valid_lens, query, kv_len)
        sizes = query.shape[:-2]
        return inside.movedim(0, -3) if len(sizes) > 1 and sizes[0] == sizes[-1] else inside


@_attention("own", killers=("causal_and_padding_combine",))
class LengthsIgnoredBesideAMask(Attention):
    """Lengths are used only if causality is not asked for."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        valid_lens = None if is_causal else valid_lens
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class LengthsIgnoredForCausalGroups(Attention):
    """Lengths are not used where heads are grouped and causality is asked for."""

    def forward(self, *args: Any, enable_gqa: bool = False, **given: Any) -> Any:
        if enable_gqa and given.get("is_causal"):
            given["valid_lens"] = None
        return super().forward(*args, enable_gqa=enable_gqa, **given)


@_attention("own", killers=("valid_lengths_count_the_keys",))
class PositionsInTheLengthsDtype(Attention):
    """Positions are counted in the lengths' integers, which end at 127 or 255."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        rows = valid_lens.shape[1] if valid_lens.dim() == 2 else 1
        lens = valid_lens.reshape(-1, *[1] * (query.dim() - 3), rows, 1)
        return torch.arange(kv_len, device=query.device).to(lens.dtype) < lens


@_attention("own", killers=("gradient_modes_agree",))
class LengthsOfQueriesForgottenInInference(Attention):
    """In inference mode, lengths of each query are not used."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        if torch.is_inference_mode_enabled() and valid_lens.dim() == 2:
            valid_lens = torch.full_like(valid_lens, kv_len)
        return super().lengths(valid_lens, query, kv_len)


@_attention("own", killers=("valid_lengths_count_the_keys",))
class LengthsInTheQuerysDtype(Attention):
    """Lengths are moved to the dtype of the query: in bfloat16 257 becomes 256."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths(valid_lens.to(query.dtype).long(), query, kv_len)
