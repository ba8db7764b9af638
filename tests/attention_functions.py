"""Attention functions of several styles, and the statuses of their checks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import attnbench


def flashlike(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """Attention of (B, L, H, E), causality aligned to the bottom right."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = (q.double() * (softmax_scale or q.shape[-1] ** -0.5)) @ k.double().mT
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ v.double()).to(q.dtype).transpose(1, 2)


FEW = [
    "agrees_with_scalar_reference",
    "causal_and_padding_combine",
    "grouped_heads_equal_expanded_heads",
    "hidden_slots_may_hold_nan",
    "keeps_the_contract",
    "leading_sizes_fold",
    "mask_forms_agree",
    "masks_broadcast",
    "masking_equals_deleting",
]


def with_gradient(change: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor]:
    """A copy of a tensor whose gradient is what ``change`` makes of the right one."""

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Tensor) -> Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor | None:
            return change(gradients[0])

    return Copied.apply


def statuses(report: attnbench.CheckReport) -> dict[str, str]:
    return {outcome.invariant: outcome.status for outcome in report.outcomes}


def blhd(query: Tensor, key: Tensor) -> Tensor:
    """The scores ``(B, H, L, S)`` of tensors ``(B, L, H, E)``."""
    return (query * query.shape[-1] ** -0.5).transpose(1, 2) @ key.permute(0, 2, 3, 1)
