"""A scale that is missing, wrong, lost on the way, or kept from another call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention, wide

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("mlc-llm#3426", "cntkx#10", killers=("agrees_with_scalar_reference",))
class ScaleMissing(Attention):
    """The scores are not scaled."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0 if given is None else given


@_attention("ViT#2", killers=("weights_sum_to_one",))
class ScaleAfterSoftmax(Attention):
    """The weights are scaled instead of the scores."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights: Tensor = super().normalise(hidden, allowed) * self.root
        return weights

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.root = query.shape[-1] ** -0.5
        return super().scores(query, key, scale)


@_attention("tt-metal#33304", killers=("scale_multiplies_scores",))
class ScaleArgumentIgnored(Attention):
    """A scale that is given is not used."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, None)


@_attention("tt-metal#33304", killers=("scale_multiplies_scores",))
class ScaleZeroByDefault(Attention):
    """Without a scale, 0 is used: every weight is the same."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return given or 0.0


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleOfZeroIsNone(Attention):
    """A scale of 0 is taken for none."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given or None)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleOneOverSize(Attention):
    """1/E instead of 1/√E."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1 / query.shape[-1] if given is None else given


@_attention("own", killers=("query_alone_equals_query_among_others",))
class ScaleOfTheLength(Attention):
    """The root of L is taken for the root of E."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return query.shape[-2] ** -0.5 if given is None else given


@_attention("own", killers=("agrees_with_scalar_reference",))
class ScaleAppliedTwice(Attention):
    """Both the query and the scores are scaled."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, scale) * scale


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleOfOneIsNone(Attention):
    """A scale of 1 is taken for none."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, None if given == 1.0 else given)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleLostBesideManyKeys(Attention):
    """The path of more than two blocks of keys has a scale of its own."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, None if key.shape[-2] > 2 * BLOCK else given)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleLostWithoutGradients(Attention):
    """The path without gradients forgets the scale."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given if torch.is_grad_enabled() else None)


@_attention("own", killers=("training_equals_evaluation",))
class ScaleOnTopInTraining(Attention):
    """In training a scale multiplies the usual one, which it should replace."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        scale = super().scale(query, key, given)
        return scale if given is None or not self.training else scale * query.shape[-1] ** -0.5


@_attention("own", killers=("inputs_are_unchanged",))
class QueryScaledInPlaceWithoutGradients(Attention):
    """Without gradients, the caller's query is scaled in place."""

    def forward(
        self, query: Tensor, *args: Any, scale: float | None = None, **keywords: Any
    ) -> Any:
        if scale is not None and not torch.is_grad_enabled():
            query, scale = query.mul_(scale), 1.0
        return super().forward(query, *args, scale=scale, **keywords)


class _Product(torch.autograd.Function):
    """Scaled products, whose key's gradient takes the usual scale."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale = scale
        return (query * scale) @ key.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key = ctx.saved_tensors
        usual = query.shape[-1] ** -0.5
        return grad @ key * ctx.scale, grad.mT @ query * usual, None


@_attention("own", killers=("scale_multiplies_scores",))
class KeyGradientHasTheUsualScale(Attention):
    """The gradient by the key takes 1/√E, whatever the scale."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found: Tensor = _Product.apply(wide(query), wide(key), scale)
        return found


class _LastScale(torch.autograd.Function):
    """Scaled products, whose scale is kept where every call keeps its own."""

    kept = 1.0

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        _LastScale.kept = scale
        return (query * scale) @ key.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key = ctx.saved_tensors
        grad = grad * _LastScale.kept
        return grad @ key, grad.mT @ query, None


@_attention("own", killers=("backward_leaves_no_trace",))
class ScaleKeptOnTheClass(Attention):
    """The backward pass takes the scale of the last call, which may be another module's."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found: Tensor = _LastScale.apply(wide(query), wide(key), scale)
        return found


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleOfThePaddedSize(Attention):
    """Beyond 64 features the usual scale is that of a size padded to eights."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        size = query.shape[-1]
        padded = -(-size // 8) * 8 if size > 64 else size
        return super().scale(query, key, padded**-0.5 if given is None else given)
