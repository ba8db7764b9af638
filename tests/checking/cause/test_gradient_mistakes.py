"""What a backward pass does otherwise, where the output is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench.adapters import sdpa
from attnbench.cases.case import Case
from attnbench.checking.cause.gradient_mistakes import gradient_mistake
from attnbench.checking.cause.replays import explains
from attnbench.checking.known_causes import cause_of_mistake
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve


def attention(mode: str) -> Callable[..., Tensor]:
    """Scaled dot products, with a backward pass written by hand and one thing wrong in it."""

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, *more: Any
        ) -> Tensor:
            softcap, mask, bias, kept = more
            scores, slope = query @ key.mT * scale, torch.ones(())
            if softcap is not None:
                raw = scores
                slope = 1 - (scores / softcap).tanh().square()
                scores = softcap * (scores / softcap).tanh()
                slope = 1 - (raw / softcap).square() if mode == "of_softcap_before_it" else slope
            shown = (scores + bias).masked_fill(~mask, -math.inf)
            sums = shown.logsumexp(-1, keepdim=True)
            sums = sums.masked_fill(sums == -math.inf, math.inf)
            weights = (shown - sums).exp().nan_to_num(0.0)
            lacking = scores if mode == "without_bias" else scores + bias
            lacking = lacking.masked_fill(~kept, -math.inf)
            again = lacking.softmax(-1).nan_to_num(0.0)
            again = (lacking - sums).exp() if mode == "without_window_size" else again
            ctx.save_for_backward(query, key, value, again, slope, (weights @ value))
            ctx.scale = scale
            return weights @ value

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> Any:
            query, key, value, weights, slope, output = ctx.saved_tensors
            slopes = grads[0] @ value.mT
            mean = (output * grads[0]).sum(-1, keepdim=True)
            terms = weights * (slopes if mode == "without_sum" else slopes - mean)
            terms = terms if mode == "without_softcap" else terms * slope
            scale = query.shape[-1] ** -0.5 if mode == "of_default_scale" else ctx.scale
            by_key = terms.mT @ query * (1.0 if mode == "without_scale" else scale)
            by_value = weights.mT @ grads[0] * (0.9 if mode == "other" else 1.0)
            by_query = None if mode == "stopped" else terms @ key * scale
            return by_query, by_key, by_value, None, None, None, None, None

    def function(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        window_size: tuple[int, int] | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        if mode == "of_groups_first" and groups > 1:
            rest = [t.detach().repeat_interleave(groups - 1, 1) for t in (key, value)]
            shape = (*key.shape[:2], groups, *key.shape[2:])
            key, value = (
                torch.cat(
                    [t[:, :, None], r.reshape(*t.shape[:2], groups - 1, *t.shape[2:])], 2
                ).reshape(shape[0], -1, *t.shape[2:])
                for t, r in zip((key, value), rest, strict=True)
            )
        elif groups > 1:
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        ahead = torch.arange(shape[-1]) - torch.arange(shape[-2])[:, None]
        offset = shape[-1] - shape[-2]
        before, after = (-1, -1) if window_size is None else window_size
        parts = {
            "causality": (ahead <= offset) if is_causal else torch.ones_like(ahead) > 0,
            "window_size": ((ahead >= offset - before) | (before < 0))
            & ((ahead <= offset + after) | (after < 0)),
            "mask": torch.ones_like(ahead) > 0,
        }
        bias = torch.zeros(()).to(query)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            parts["mask"] = attn_mask.expand(shape)
        elif attn_mask is not None:
            bias = attn_mask
        lost = mode.removeprefix("without_")
        mask = parts["causality"] & parts["window_size"] & parts["mask"]
        kept = torch.ones_like(ahead) > 0
        for name, part in parts.items():
            kept = kept if name == lost else kept & part
        if mode == "of_causality_top_left" and is_causal:
            kept = kept.expand(shape) & (ahead <= 0)
        used = query.shape[-1] ** -0.5 if scale is None else scale
        shown = mask.expand(shape), bias, kept.expand(shape)
        output: Tensor = Written.apply(query, key, value, used, softcap, *shown)
        return output

    return function


@pytest.mark.parametrize(
    "mode",
    [
        "right",
        "other",
        "without_sum",
        "without_scale",
        "without_softcap",
        "of_default_scale",
        "of_groups_first",
        "of_softcap_before_it",
        "stopped",
        "without_mask",
        "without_causality",
        "without_window_size",
        "without_bias",
        "of_causality_top_left",
    ],
)
def test_what_the_backward_pass_lacks_is_told_by_its_gradients(mode: str) -> None:
    (subject,) = resolve(
        sdpa(
            attention(mode),
            name="mine",
            conventions={"masks": ("boolean", "floating"), "causal": "bottom_right"},
        )
    )
    expected = None if mode in ("right", "other") else f"gradient_{mode}"
    assert gradient_mistake(subject) == expected


class Dropping(torch.autograd.Function):
    """Dropout of weights, whose factors the backward pass may lack; ``lacking`` tells which."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, share: float, lacking: str) -> Tensor:
        kept = (torch.rand_like(weights) >= share).to(weights)
        factors = kept / (1 - share)
        lacks = {"without_dropout": torch.ones_like(kept), "of_dropout_not_rescaled": kept}
        ctx.save_for_backward(lacks.get(lacking, factors))
        return weights * factors

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None, None


@pytest.mark.parametrize("mode", ["right", "without_dropout", "of_dropout_not_rescaled"])
def test_what_the_backward_pass_lacks_of_dropout_is_told(mode: str) -> None:
    def function(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
    ) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        weights = scores.softmax(-1)
        weights = Dropping.apply(weights, dropout_p, mode) if dropout_p else weights
        output: Tensor = weights @ value
        return output

    (subject,) = resolve(sdpa(function, name="mine"))
    assert gradient_mistake(subject) == (None if mode == "right" else f"gradient_{mode}")
    assert mode == "right" or cause_of_mistake(f"gradient_{mode}") == "dropout_gradient"


@pytest.mark.parametrize(
    ("invariant", "quantity", "explained"),
    [
        ("layouts_agree", "output", False),
        ("layouts_agree", "the gradient by key", True),
        ("gradients_are_right", "the slope", True),
    ],
)
def test_a_backward_pass_explains_gradients_alone(
    invariant: str, quantity: str, explained: bool
) -> None:
    (subject,) = resolve(sdpa(attention("without_sum"), name="mine"))
    (chosen,) = select_invariants([invariant])
    failure = Failure(quantity=quantity, case=Case().id)
    assert explains("gradient_without_sum", subject, chosen, failure) is explained
