"""Gradients by hand that are wrong, which rows of mistakes use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _cut(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a half type, with the digits beyond it cut off."""
    near = tensor.to(dtype)
    over = near.to(tensor.dtype).abs() > tensor.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


class Cut(torch.autograd.Function):
    """Cuts the output, or the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype, backward: bool) -> Tensor:
        ctx.dtype, ctx.backward_too = dtype, backward
        return tensor.clone() if backward else _cut(tensor, dtype).to(tensor.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        return (_cut(grad, ctx.dtype).to(grad.dtype) if ctx.backward_too else grad), None, None


class Recomputed(torch.autograd.Function):
    """Softmax whose backward pass makes the weights anew of scores in a half type."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        log_sum = hidden.logsumexp(-1, keepdim=True).nan_to_num(neginf=0.0)
        ctx.save_for_backward(hidden.to(dtype), log_sum)
        return (hidden - log_sum).exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        hidden, log_sum = ctx.saved_tensors
        terms = (hidden - log_sum).exp() * grads[0]
        return terms - (hidden - log_sum).exp() * terms.sum(-1, keepdim=True), None


class ProductWithTheUsualScale(torch.autograd.Function):
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


class LastScale(torch.autograd.Function):
    """Scaled products, whose scale is kept where every call keeps its own."""

    kept = 1.0

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        LastScale.kept = scale
        return (query * scale) @ key.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key = ctx.saved_tensors
        grad = grad * LastScale.kept
        return grad @ key, grad.mT @ query, None


class _Softmax(torch.autograd.Function):
    """Softmax; each subclass has a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        return weights


class SoftmaxOfOneBlock(_Softmax):
    """Softmax whose gradient sums over the first 128 keys only."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        wrong: Tensor = weights * (grad - (weights * grad)[..., :128].sum(-1, keepdim=True))
        return wrong


class LosesABlock(torch.autograd.Function):
    """The identity, whose backward pass stops before the last of whole blocks of 40 keys."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        if grad.shape[-1] > 40 and grad.shape[-1] % 40 == 0:
            grad[..., -40:] = 0.0
        return grad


class DropsAnew(torch.autograd.Function):
    """Dropout whose backward pass draws again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, dropout_p: float) -> Tensor:
        ctx.dropout_p = dropout_p
        return nn.functional.dropout(weights, dropout_p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return nn.functional.dropout(grad, ctx.dropout_p), None


class SoftmaxWithoutSum(_Softmax):
    """Softmax whose gradient lacks the term of the row's sum."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        wrong: Tensor = grad * weights
        return wrong


class _Pooled(torch.autograd.Function):
    """The weighted sum; each subclass has a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(weights, value)
        return weights @ value


class ProductReadInOrder(_Pooled):
    """A product whose gradient reads the gradient's memory as if it were contiguous."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        if grad.mT.is_contiguous() and not grad.is_contiguous():
            grad = grad.mT.reshape(grad.shape)
        return grad @ value.mT, weights.mT @ grad


class PooledInTheOutput(torch.autograd.Function):
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


class SummedBetweenPasses(_Pooled):
    """The weighted sum, whose gradients are added up from pass to pass."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        ctx.total = getattr(ctx, "total", 0.0) + weights.mT @ grad
        return grad @ value.mT, ctx.total


_WORKSPACE: dict[torch.Size, Tensor] = {}


class KeptInAWorkspace(torch.autograd.Function):
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


class ConstantWeights(torch.autograd.Function):
    """A softmax whose backward pass takes the weights for constants."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.weights = hidden.softmax(-1)
        return ctx.weights.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.weights * (grad - (grad * ctx.weights).sum(-1, keepdim=True))


class Unwritten(torch.autograd.Function):
    """The gradient of rows behind the last document is what the memory held."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, last: int) -> Tensor:
        ctx.last = last
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone()
        gradient[ctx.last :] = torch.nan
        return gradient, None


class _Products(torch.autograd.Function):
    """Products; each subclass has a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        return query @ key.mT


class OverwritesItsGradient(_Products):
    """Products whose backward pass works in the gradient that it is handed."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        grad.neg_()
        return -grad @ key, -grad.mT @ query


class ReadsItsGradientInOrder(_Products):
    """Products whose backward pass reads the gradient's memory on and on."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        if grad.stride(-1) == 1:
            rows = torch.empty(grad.shape, device="meta").stride()
            grad = torch.as_strided(grad, grad.shape, rows)
        return grad @ key, grad.mT @ query


class SumsInFloat32(_Products):
    """Products whose gradients are added up in float32."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        narrow = grad.float()
        return (narrow @ key.float()).to(query.dtype), (narrow.mT @ query.float()).to(key.dtype)
