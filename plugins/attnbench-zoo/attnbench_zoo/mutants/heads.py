"""Mistakes with heads, batches and shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS, Heads

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


@_heads("FuxiCTR#30", killers=("query_alone_equals_query_among_others",))
class HeadsSplitByView(Heads):
    """``view`` without ``transpose``: a head gets a share of the positions, not of the features."""

    def split(self, tensor: Tensor) -> Tensor:
        batch, length, width = tensor.shape
        return tensor.reshape(batch * self.heads, length, width // self.heads)


@_heads("own", killers=("query_alone_equals_query_among_others",))
class HeadsMergedByView(Heads):
    """Heads are merged without ``transpose``."""

    def merge(self, tensor: Tensor) -> Tensor:
        _, length, size = tensor.shape
        return tensor.reshape(-1, length, self.heads * size)


@_heads("lighthouse#77", "AttnGAN#93", killers=("item_alone_equals_item_in_batch",))
class MaskTiledOverHeads(Heads):
    """The masks of a batch are tiled over the heads, where they should be interleaved."""

    def for_heads(self, mask: Tensor) -> Tensor:
        return mask.repeat(self.heads, 1, 1)


@_heads("own", killers=("masked_slots_are_inert",))
class MaskForTheFirstHeadOnly(Heads):
    """Only the first head of each item is masked."""

    def for_heads(self, mask: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return super().for_heads(mask)
        first = torch.arange(self.heads, device=mask.device).repeat(mask.shape[0]) == 0
        return super().for_heads(mask) | ~first.reshape(-1, 1, 1)


@_heads("own", killers=("agrees_with_scalar_reference",))
class SecondHeadRepeatsTheFirst(Heads):
    """Every head gets the queries of the first."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        first = query.reshape(-1, self.heads, *query.shape[-2:])[:, :1]
        query = first.expand(-1, self.heads, -1, -1).reshape(query.shape)
        return super().attend(query, key, value, mask)


@_heads("own", killers=("empty_rows_give_zeros",))
class ProjectionBiasInEmptyRows(Heads):
    """A query without keys gives the bias of the last projection, not zeros."""

    def close(self, output: Tensor, hidden: Tensor) -> Tensor:
        return output


@_heads("own", killers=("gradients_reach_every_parameter",))
class QueryProjectionDetached(Heads):
    """The queries are detached from the graph behind their projection."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return super().attend(query.detach(), key, value, mask)


@_heads("own", killers=("hidden_slots_may_hold_nan_in_training",))
class PoisonThroughTheProjections(Heads):
    """What padding holds is projected, and multiplied by 0 behind it."""

    def silence(self, tensor: Tensor, hidden: Tensor) -> Tensor:
        return tensor


@_attention("allennlp#1775", "tacotron2#303", killers=("keeps_the_contract",))
class SqueezeDropsSizeOne(Attention):
    """``squeeze()`` drops every size of 1 from the output."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value).squeeze()


@_attention("own", killers=("keeps_the_contract",))
class SqueezeDropsASingleQuery(Attention):
    """``squeeze(-2)`` drops the length of a single query."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value).squeeze(-2)


@_attention("own", killers=("item_alone_equals_item_in_batch",))
class ItemsMixedWhereFourDimensions(Attention):
    """With batch and heads, items are pooled with the values of the one before."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value.roll(1, 0) if value.dim() > 3 else value)


@_attention("own", killers=("leading_sizes_fold",))
class LeadingSizesSwapped(Attention):
    """Batch and heads are swapped on the way through where they are alike."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        square = output.dim() > 3 and output.shape[0] == output.shape[1]
        return output.transpose(0, 1) if square else output


@_attention("own", killers=("keeps_the_contract",))
class LeadingSizesFlattened(Attention):
    """The output comes back with batch and heads in one dimension."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        result = super().forward(*args, **keywords)
        if isinstance(result, tuple):
            return result
        return result.flatten(0, 1) if result.dim() > 3 else result


@_attention("own", killers=("item_alone_equals_item_in_batch",))
class QueriesCentredOnTheBatch(Attention):
    """Queries are centred on the mean of the batch, so that items reach each other."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        others = query.mean(0, keepdim=True) if query.dim() > 2 else 0.0
        return super().scores(query - others, key, scale)


@_attention("own", killers=("query_alone_equals_query_among_others",))
class QueriesInfluenceEachOther(Attention):
    """Scores are centred over the queries."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        return scores - scores.mean(-2, keepdim=True)


@_attention("own", killers=("keys_permute_freely",))
class ValuesReversedInLongRows(Attention):
    """The values are pooled in reverse order for more than 16 keys."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value.flip(-2) if value.shape[-2] > 16 else value)


@_attention("own", killers=("keys_permute_freely",))
class FirstKeyFavoured(Attention):
    """The first key has a bonus, like a learned start token."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        return scores + 0.1 * (torch.arange(key.shape[-2], device=key.device) == 0)


@_heads("own", killers=("key_given_again_equals_bias_of_log_2",))
class BiasScaledLikeScores(Heads):
    """A floating mask is divided by the root of the head size, as the scores are."""

    def for_heads(self, mask: Tensor) -> Tensor:
        shared = super().for_heads(mask)
        return shared if mask.dtype == torch.bool else shared / 2
