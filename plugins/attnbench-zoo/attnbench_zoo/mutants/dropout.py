"""Mistakes of dropout, and of the weights beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS, Heads

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


@_attention("pytorch#124464", "timm#1978", killers=("no_dropout_in_evaluation",))
class DropoutInEvaluation(Attention):
    """Dropout does not ask whether the module is in training."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return nn.functional.dropout(weights, dropout_p)


@_attention("pytorch#42929", "pytorch#33360", killers=("weights_are_those_before_dropout",))
class WeightsAfterDropout(Attention):
    """The weights that are handed back are those after dropout."""

    def forward(self, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        self.dropout_p = dropout_p
        return super().forward(*args, **keywords)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return self.drop(super().normalise(hidden, allowed), self.dropout_p)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value)


@_attention("ng-video-lecture#30", killers=("dropout_acts_on_weights",))
class DropoutBeforeSoftmax(Attention):
    """Scores are dropped, not weights."""

    def forward(self, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        self.dropout_p = dropout_p
        return super().forward(*args, **keywords)

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(self.drop(scores, self.dropout_p), allowed)


@_attention("own", killers=("dropout_keeps_the_mean",))
class DropoutNotRescaled(Attention):
    """What dropout leaves is not rescaled."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        dropped = super().drop(weights, dropout_p)
        return dropped * (1 - dropout_p) if self.training else dropped


@_attention("own", killers=("dropout_acts_on_weights",))
class DropoutIgnored(Attention):
    """``dropout_p`` is taken and not used."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return weights


@_attention("own", killers=("dropout_acts_on_weights",))
class DropoutOnTheOutput(Attention):
    """Dropout takes features of the output, not weights of keys."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        self.share = dropout_p
        return weights

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        return nn.functional.dropout(output, self.share, training=self.training)


@_attention("own", killers=("dropout_acts_on_weights",))
class DropoutTheSameInEveryRow(Attention):
    """One pattern of dropped keys for all queries, and one factor too much."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        pattern = super().drop(torch.ones_like(weights[..., :1, :]), dropout_p)
        return weights * pattern * pattern


@_attention("own", killers=("asking_for_weights_changes_nothing",))
class NoDropoutBesideWeights(Attention):
    """Where weights are asked for, nothing is dropped from the output."""

    def forward(self, *args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
        if return_weights:
            kwargs["dropout_p"] = 0.0
        return super().forward(*args, return_weights=return_weights, **kwargs)


@_attention("own", killers=("dropout_keeps_the_mean",))
class DropoutTheSameInEveryCall(Attention):
    """What is dropped is drawn by a generator that starts anew in each call."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or dropout_p == 0:
            return weights
        generator = torch.Generator(weights.device).manual_seed(0)
        kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= dropout_p
        return weights * kept / (1 - dropout_p)


@_attention("own", killers=("dropout_keeps_the_mean",))
class NoDropoutOfAnOnlyKey(Attention):
    """A single key is never dropped."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return weights if weights.shape[-1] == 1 else super().drop(weights, dropout_p)


@_heads("own", killers=("keeps_the_contract",))
class DropoutOfItsOwn(Heads):
    """A dropout of the module's own is active in evaluation."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.dropout(super().attend(query, key, value, mask), 0.1, training=True)


@_attention("own", killers=("dropout_is_independent",))
class DropoutSharedByQueries(Attention):
    """All queries of an item lose the same keys."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return weights * super().drop(torch.ones_like(weights[..., :1, :]), dropout_p)


@_attention("own", killers=("dropout_is_independent",))
class DropoutSharedByHeads(Attention):
    """All heads lose the same weights."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        one = weights[..., :1, :, :] if weights.dim() > 3 else weights
        return weights * super().drop(torch.ones_like(one), dropout_p)


@_attention("own", killers=("dropout_acts_on_weights",))
class ShareToKeep(Attention):
    """``dropout_p`` is taken for the share of weights to keep."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return super().drop(weights, 1 - dropout_p if dropout_p else 0.0)


class _DropsAnew(torch.autograd.Function):
    """Dropout whose backward pass draws again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, dropout_p: float) -> Tensor:
        ctx.dropout_p = dropout_p
        return nn.functional.dropout(weights, dropout_p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return nn.functional.dropout(grad, ctx.dropout_p), None


@_attention("own", killers=("gradients_are_right_with_dropout",))
class BackwardDropsOthers(Attention):
    """The backward pass drops other weights than the forward pass did."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or not dropout_p:
            return weights
        dropped: Tensor = _DropsAnew.apply(weights, dropout_p)
        return dropped


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutWhenCausal(Attention):
    """The causal path forgets dropout."""

    def forward(
        self, *args: Any, dropout_p: float = 0.0, is_causal: bool = False, **keywords: Any
    ) -> Any:
        dropout_p = 0.0 if is_causal else dropout_p
        return super().forward(*args, dropout_p=dropout_p, is_causal=is_causal, **keywords)


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutInHalfPrecision(Attention):
    """The path of half types forgets dropout."""

    def forward(self, query: Tensor, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        dropout_p = 0.0 if query.element_size() == 2 else dropout_p
        return super().forward(query, *args, dropout_p=dropout_p, **keywords)


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutOfManyKeys(Attention):
    """Beyond two blocks of keys nothing is dropped."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return super().drop(weights, 0.0 if weights.shape[-1] > 2 * BLOCK else dropout_p)


@_attention("own", killers=("dropout_differs_between_blocks",))
class EachBlockDropsTheSame(Attention):
    """Each block of queries draws from the same place of the random stream."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or weights.shape[-2] <= BLOCK:
            return super().drop(weights, dropout_p)
        kept = super().drop(torch.ones_like(weights[..., :BLOCK, :]), dropout_p)
        blocks = -(-weights.shape[-2] // BLOCK)
        return weights * torch.cat([kept] * blocks, -2)[..., : weights.shape[-2], :]


@_attention("own", killers=("dropout_keeps_the_mean",))
class DropoutInStepsOfABit(Attention):
    """Random bytes are held against the share times 256; the rest is rescaled by the share."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or not dropout_p:
            return weights
        kept = torch.randint(256, weights.shape) >= round(dropout_p * 256)
        return weights * kept / (1 - dropout_p)


@_attention("own", killers=("dropout_differs_between_blocks",))
class EachLargeBlockDropsTheSame(Attention):
    """What 256 queries lose, the next ones lose again."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        size = 4 * BLOCK
        if not self.training or weights.shape[-2] <= size:
            return super().drop(weights, dropout_p)
        kept = super().drop(torch.ones_like(weights[..., :size, :]), dropout_p)
        blocks = -(-weights.shape[-2] // size)
        return weights * torch.cat([kept] * blocks, -2)[..., : weights.shape[-2], :]
