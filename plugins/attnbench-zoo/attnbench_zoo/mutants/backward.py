"""Mistakes that only gradients show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS, Heads

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


@_attention("seen in review", killers=("gradients_are_right",))
class WeightsDetached(Attention):
    """The weights are detached: only the value gets a gradient."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return super().drop(weights.detach(), dropout_p)


@_attention("own", killers=("gradients_are_right",))
class KeyDetached(Attention):
    """No gradient reaches the key."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key.detach(), scale)


@_attention("own", killers=("gradients_are_right",))
class ValueDetached(Attention):
    """No gradient reaches the value."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value.detach())


class _Softmax(torch.autograd.Function):
    """Softmax whose gradient lacks the term of the row's sum."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        wrong: Tensor = grad * weights
        return wrong


@_attention("own", killers=("gradients_are_right",))
class SoftmaxGradientWithoutSum(Attention):
    """A hand-written backward of softmax lacks the sum over the row."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights: Tensor = _Softmax.apply(hidden)  # torch's
        return weights.masked_fill(~allowed, 0.0)


class _Product(torch.autograd.Function):
    """A product whose gradient reads the gradient's memory as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(weights, value)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        if grad.mT.is_contiguous() and not grad.is_contiguous():
            grad = grad.mT.reshape(grad.shape)
        return grad @ value.mT, weights.mT @ grad


@_attention("pytorch#181133", killers=("gradient_layouts_agree",))
class GradientReadInOrder(Attention):
    """A transposed gradient is read as if it were contiguous."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        product: Tensor = _Product.apply(weights, value.to(weights.dtype))
        return product


@_attention("own", killers=("gradients_are_right",))
class GradientIntoMaskedSlots(Attention):
    """The value of every slot, masked ones too, gets a small gradient."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        silent = super().silence_value(value, allowed)
        leak = 1e-3 * value.nan_to_num().sum(-2, keepdim=True)
        return silent + (leak - leak.detach())


@_attention("own", killers=("gradients_are_finite_at_extremes",))
class GradientInfiniteAtZeroWeight(Attention):
    """Weights are the square of a root: right, but its gradient at 0 is not finite."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden, allowed).sqrt().square()


@_heads("own", killers=("gradients_reach_every_parameter",))
class ParameterUnused(Heads):
    """A gate is made, and never used."""

    def __init__(self, query_size: int, key_size: int, value_size: int, *, heads: int = 2) -> None:
        super().__init__(query_size, key_size, value_size, heads=heads)
        self.gate = nn.Parameter(torch.ones(heads))


@_heads("own", killers=("gradients_reach_every_parameter",))
class ParameterReadThroughData(Heads):
    """The last projection is read through ``.data``, so that nothing trains it."""

    def project(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        if linear is not self.out_proj:
            return super().project(linear, tensor)
        weight, bias = linear.weight.data, linear.bias.data
        return nn.functional.linear(tensor, weight.to(tensor.dtype), bias.to(tensor.dtype))


@_attention("own", killers=("gradients_alone_equal_gradients_together",))
class KeyNeedsTheQuerysGradient(Attention):
    """The key gets a gradient only where the query wants one."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key if query.requires_grad else key.detach(), scale)


class _Pooled(torch.autograd.Function):
    """The weighted sum, whose backward pass works in the output's own memory."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        output = weights @ value
        ctx.save_for_backward(weights, value)
        ctx.output = output.detach()
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        ctx.output.copy_(grad)
        return ctx.output @ value.mT, weights.mT @ grad


@_attention("own", killers=("backward_leaves_no_trace",))
class OutputOverwrittenByBackward(Attention):
    """The backward pass takes the memory of the output for its own."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _Pooled.apply(weights, value.to(weights.dtype))
        return output


class _Summed(torch.autograd.Function):
    """The weighted sum, whose gradients are added up from pass to pass."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(weights, value)
        ctx.total = torch.zeros_like(value)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        ctx.total = ctx.total + weights.mT @ grad
        return grad @ value.mT, ctx.total


@_attention("own", killers=("backward_leaves_no_trace",))
class SumKeptBetweenPasses(Attention):
    """A second backward pass goes on where the first ended."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _Summed.apply(weights, value.to(weights.dtype))
        return output


@_attention("own", killers=("one_tensor_equals_three_copies",))
class SelfAttentionCutOff(Attention):
    """Where query and key are one tensor, the query's share of its gradient is lost."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **given: Any) -> Any:
        if query is key:
            query = query.detach()
        return super().forward(query, key, value, *args, **given)


@_attention("own", killers=("asking_for_weights_changes_nothing",))
class NoGradientBesideWeights(Attention):
    """Asked for weights, it gives an output whose weights have no gradient."""

    def forward(self, *args: Any, return_weights: bool = False, **given: Any) -> Any:
        self.shown = return_weights
        return super().forward(*args, return_weights=return_weights, **given)

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return super().drop(weights.detach() if self.shown else weights, dropout_p)


@_attention("own", killers=("causal_and_padding_combine",))
class KeyDetachedBesideLengthsAndMask(Attention):
    """Where lengths and a mask are given together, the key gets no gradient."""

    def forward(self, query: Tensor, key: Tensor, *args: Any, **given: Any) -> Any:
        if given.get("valid_lens") is not None and given.get("attn_mask") is not None:
            key = key.detach()
        return super().forward(query, key, *args, **given)


@_attention("own", killers=("causal_and_padding_combine",))
class BiasDetachedBesideCausality(Attention):
    """A floating mask gets no gradient where causality is folded into it."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias.detach() if is_causal else bias


@_attention("own", killers=("bias_gets_its_gradient",))
class BroadcastBiasDetached(Attention):
    """A floating mask that all items share gets no gradient."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias if bias.dim() == query.dim() else bias.detach()


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupedHeadsGetOneGradient(Attention):
    """Of a group of query heads only the first gives key and value a gradient."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        rest = tensor.detach().unsqueeze(-3).expand(*[-1] * (tensor.dim() - 2), groups - 1, -1, -1)
        return torch.cat([tensor.unsqueeze(-3), rest], -3).flatten(-4, -3)


_WORKSPACE: dict[torch.Size, Tensor] = {}


class _Kept(torch.autograd.Function):
    """The weighted sum, whose weights lie in one workspace for each shape."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        ctx.weights = weights
        if type(weights) is Tensor:
            space = _WORKSPACE.setdefault(weights.shape, torch.empty_like(weights))
            ctx.weights = space.copy_(weights) if space.dtype == weights.dtype else weights
        return weights @ value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (value,) = ctx.saved_tensors
        return grad @ value.mT, ctx.weights.mT @ grad


@_attention("own", killers=("backward_leaves_no_trace",))
class WorkspaceOfTheLastCall(Attention):
    """What the backward pass needs is overwritten by the next call."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _Kept.apply(weights, value.to(weights.dtype))
        return output


@_attention("own", killers=("one_tensor_equals_three_copies",))
class SameAddressTakenForTheSame(Attention):
    """A value at the key's address and of its shape is taken for the key, whatever its strides."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **given: Any) -> Any:
        if not torch.compiler.is_compiling() and key.shape == value.shape:
            value = key if key.data_ptr() == value.data_ptr() else value
        return super().forward(query, key, value, *args, **given)


class ConstantWeights(torch.autograd.Function):
    """A softmax whose backward pass takes the weights for constants."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.weights = hidden.softmax(-1)
        return ctx.weights.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.weights * (grad - (grad * ctx.weights).sum(-1, keepdim=True))


@_attention("own", killers=("second_derivatives_are_right_or_refused",))
class SecondDerivativesOfConstants(Attention):
    """A hand-written backward pass keeps the weights where no graph reaches them."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if not hidden.requires_grad:
            return super().normalise(hidden, allowed)
        found: Tensor = ConstantWeights.apply(hidden)
        return found.masked_fill(~allowed, 0.0)
