"""Gradients that are wrong where the output is right."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.options import OPTIONS, Options

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_options = Group(OPTIONS, MUTANTS)


@_attention("XunhaoLai/native-sparse-attention-triton#27")
class GradientOfTheFirstValueFeatures(Attention):
    """The gradient of the weights sums over as many features of the values as queries have."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.width = query.shape[-1]
        return super().scores(query, key, scale)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        near, far = value[..., : self.width], value[..., self.width :]
        return torch.cat([super().pool(weights, near), super().pool(weights.detach(), far)], -1)


@_attention("HKUSTDial/flash-sparse-attention#194")
class BiasGradientOfTheLastQuery(Attention):
    """The gradient of a bias that all queries share is that of the last one alone."""

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        if attn_mask is not None and attn_mask.shape[-2] == 1 < query.shape[-2]:
            others = attn_mask.detach().expand(*attn_mask.shape[:-2], query.shape[-2] - 1, -1)
            attn_mask = torch.cat([others, attn_mask], -2)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("aws-neuron/nki-samples#81")
class DroppedWeightsGetAGradient(Attention):
    """The gradient of the weights is not dropped where the weights were."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return weights + (super().drop(weights, dropout_p) - weights).detach()


@_options("NVIDIA/cudnn-frontend#421")
class SinkMissesInTheGradient(Options):
    """For the gradients weights are computed again, without the sink, which gets no gradient."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = super().normalise(hidden, allowed)
        if self.given[2] is None:
            return weights
        self.alone = Attention.normalise(self, hidden, allowed).detach()
        seen, weights = hidden.masked_fill(~allowed, 0.0), weights.detach()
        change = self.alone * (seen - seen.detach())
        return weights + change - weights * change.sum(-1, keepdim=True)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        if self.given[2] is None:
            return super().pool(weights, value)
        again = super().pool(self.alone, value)
        return super().pool(weights, value.detach()) + again - again.detach()
