"""What the backward pass of scaled dot products does otherwise, where the output is right."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.oracle.textbook import Stages, is_textbook, scale_of, stages_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_LEAVES = ("query", "key", "value")
_NEAR = 1e-4
_SHARE = 0.3
"""Share of the weights that are dropped."""
_CASES = (
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64"),
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64", mask="causal", seed=1),
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64", mask="boolean", seed=2),
    Case((2, 3), 3, 6, 8, 8, 8, dtype="float64", mask="causal", seed=3),
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64", mask="bias", seed=4),
)

Gradients = tuple[Tensor, Tensor, Tensor]
"""The gradients by query, key and value."""

Named = tuple[str, Gradients]


def gradient_mistake(subject: Subject) -> str | None:
    """The mistake that gives the wrong gradients of a subject in all calls that it has wrong.

    The calls are those without options, and with one of them each.
    """
    common: set[str] | None = None
    is_meant = "gradients_are_right" in subject.exempt or not subject.conventions.gradients
    for case in () if is_meant or not is_textbook(subject) else _CASES:
        case = subject.legal(case)
        if not subject.takes_mask(case.mask) or subject.unsupported(case) is not None:
            continue
        with contextlib.suppress(Exception, SystemExit):  # refusals and errors say nothing here
            module, inputs = subject.build(case)
            for call in _calls(subject, inputs):
                shape = call.query.shape[:-1] + call.value.shape[-1:]
                weight = torch.randn(shape, dtype=torch.float64).to(call.query)
                leaves = [getattr(call, name).detach().requires_grad_() for name in _LEAVES]
                given = call.replace(**dict(zip(_LEAVES, leaves, strict=True)))
                with torch.enable_grad():
                    output = subject.output(module, given)
                    found = torch.autograd.grad(output, leaves, weight, allow_unused=True)
                if not _is_near(output.detach(), stages_of(call).output):
                    return None  # what is wrong with the output is wrong with its gradients
                names = _names(found, *_gradients(call, weight))
                if names is not None:
                    common = names if common is None else common & names
    if common is None and not is_meant and is_textbook(subject):
        return _dropout_mistake(subject)
    if common and len(common) > 1:  # other masks are right, or not taken
        common.discard("gradient_without_mask")
    return common.pop() if common and len(common) == 1 else None


def _dropout_mistake(subject: Subject) -> str | None:
    """The mistake of a backward pass with dropout; the identity as value shows what is dropped."""
    module, inputs = subject.build(subject.legal(_CASES[0]))
    inputs = inputs.replace(dropout_p=_SHARE)
    if "dropout_p" not in subject.accepts:
        return None

    def seeded(given: Inputs) -> Tensor:
        torch.manual_seed(0)
        return subject.output(module.train(), given)

    eye = torch.eye(inputs.key.shape[-2]).to(inputs.value)
    shown = seeded(inputs.replace(value=eye.expand(*inputs.key.shape[:-1], -1)))
    weights = stages_of(inputs).weights
    kept = shown.detach() / weights
    if not _is_near(kept, (kept > 0).to(kept) / (1 - _SHARE)):
        return None  # what is wrong with the output is wrong with its gradients
    weight = torch.randn(shown.shape[:-1] + inputs.value.shape[-1:]).to(shown)
    leaves = [getattr(inputs, name).detach().requires_grad_() for name in _LEAVES]
    with torch.enable_grad():
        output = seeded(inputs.replace(**dict(zip(_LEAVES, leaves, strict=True))))
        found = torch.autograd.grad(output, leaves, weight, allow_unused=True)
    if not _is_near(output.detach(), shown.detach() @ inputs.value):
        return None  # it draws others for another value
    named = _names(found, *_gradients_of_dropout(inputs, weights, kept, weight))
    return named.pop() if named and len(named) == 1 else None


def _gradients_of_dropout(
    inputs: Inputs, weights: Tensor, kept: Tensor, weight: Tensor
) -> Iterator[Named]:
    """The gradients with some weights dropped, and without what the forward pass does to them."""
    slopes, scale = weight @ inputs.value.mT, inputs.query.shape[-1] ** -0.5
    right = (weights * kept * slopes).sum(-1, keepdim=True)

    def of(factors: Tensor, mean: Tensor | None = None) -> Gradients:
        mean = (weights * factors * slopes).sum(-1, keepdim=True) if mean is None else mean
        terms = weights * (factors * slopes - mean) * scale
        return terms @ inputs.key, terms.mT @ inputs.query, (weights * factors).mT @ weight

    yield "right", of(kept)
    for mean in (None, right):
        yield "gradient_without_dropout", of(torch.ones_like(kept), mean)
        yield "gradient_of_dropout_not_rescaled", of((kept > 0).to(kept), mean)


def _names(found: tuple[Tensor | None, ...], right: Named, *mistakes: Named) -> set[str] | None:
    """The mistakes that give the gradients which are not right; ``None`` if all are."""
    pairs = zip(found, right[1], strict=True)
    got = [torch.zeros_like(should) if one is None else one for one, should in pairs]
    wrong = [not _is_near(one, should) for one, should in zip(got, right[1], strict=True)]
    if not any(wrong):
        return None

    def gives(others: Gradients) -> bool:
        triples = zip(got, others, wrong, strict=True)
        return all(_is_near(one, other) for one, other, is_wrong in triples if is_wrong)

    return {name for name, others in mistakes if gives(others)}


def _calls(subject: Subject, inputs: Inputs) -> Iterator[Inputs]:
    yield inputs
    if "softcap" in subject.accepts:
        yield inputs.replace(softcap=1.5)
    if "scale" in subject.accepts:
        yield inputs.replace(scale=0.7)
    is_square = inputs.query.shape[-2] == inputs.key.shape[-2]
    if "window_size" in subject.accepts and is_square and inputs.attn_mask is None:
        yield inputs.replace(window_size=(1, 1))  # no row loses all of its keys
    if inputs.query.dim() > 3:
        numbers = torch.linspace(-1.0, 1.0, inputs.query.shape[-3]).to(inputs.query)
        for name in sorted({"sinks", "alibi_slopes"} & {*subject.accepts}):
            yield inputs.replace(**{name: numbers.exp()})
    shared = inputs.attn_mask is None
    if "enable_gqa" in subject.accepts and inputs.query.dim() > 3 and shared:
        heads = torch.cat([inputs.query, 1 - inputs.query], -3)
        yield inputs.replace(query=heads, enable_gqa=True)


def _is_near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one - other).abs() <= _NEAR * other.abs().max().clamp_min(_NEAR)).all())


def _gradients(inputs: Inputs, weight: Tensor) -> Iterator[Named]:
    """The right gradients, and then those of each known mistake."""
    stages = stages_of(inputs)
    weights, key, value = stages.weights, inputs.key, stages.value
    count = inputs.query.shape[-3] if inputs.query.dim() > 2 else 1
    groups = count // key.shape[-3] if inputs.enable_gqa else 1
    key = key.repeat_interleave(groups, -3) if groups > 1 else key
    scale = scale_of(inputs)
    cap = inputs.softcap
    slope = 1 - (stages.scores / cap).square() if cap is not None else torch.ones(())

    def of(
        terms: Tensor, factor: float = scale, shown: Tensor = weights, fold: str = "sum"
    ) -> Gradients:
        heads = (terms.mT @ inputs.query * factor, shown.mT @ weight)
        folded = (_folded(heads[0], groups, fold), _folded(heads[1], groups, fold))
        return terms @ key * factor, *folded

    slopes = weight @ value.mT
    mean = (weights * slopes).sum(-1, keepdim=True)
    terms = weights * (slopes - mean)
    yield "right", of(terms * slope)
    if cap is not None:
        raw = stages_of(inputs.replace(softcap=None)).scores
        yield "gradient_without_softcap", of(terms)
        yield "gradient_of_softcap_before_it", of(terms * (1 - (raw / cap).square()))
        yield "gradient_of_softcap_twice", of(terms * slope.square())
    yield "gradient_without_sum", of(weights * slopes * slope)
    yield "gradient_without_scale", of(terms * slope, 1.0)
    yield "gradient_of_default_scale", of(terms * slope, inputs.query.shape[-1] ** -0.5)
    yield "gradient_scaled_twice", of(terms * slope, scale**2)
    yield "gradient_negated", of(-terms * slope)
    yield "gradient_stopped", of(terms * 0, shown=weights * 0)
    for name, other in _other_weights(inputs, stages):
        yield name, of(other * (slopes - mean) * slope, shown=other)
        own = (other * slopes).sum(-1, keepdim=True)
        yield name, of(other * (slopes - own) * slope, shown=other)
    for fold in ("tiled", "first", "last", "mean") if groups > 1 else ():
        yield f"gradient_of_groups_{fold}", of(terms * slope, fold=fold)


def _other_weights(inputs: Inputs, stages: Stages) -> Iterator[tuple[str, Tensor]]:
    """The weights that a backward pass computes again without a part of the call, normalised by
    their own sums or by the log-sum-exps of the right ones.
    """
    mask = {"attn_mask": None, "valid_lens": None}
    every = {**mask, "is_causal": False, "window_size": None}
    others: list[tuple[str, dict[str, Any]]] = [("without_mask", mask), ("without_mask", every)]
    for name in ("sinks", "alibi_slopes", "window_size"):
        if getattr(inputs, name) is not None:
            others.append((f"without_{name}", {name: None}))
    if inputs.attn_mask is not None and inputs.attn_mask.is_floating_point():
        others.append(("without_bias", {"attn_mask": inputs.attn_mask > -math.inf}))
    if inputs.is_causal:
        others.append(("without_causality", {"is_causal": False}))
    if inputs.is_causal and inputs.query.shape[-2] != inputs.key.shape[-2]:
        corner = "top_left" if inputs.causal == "bottom_right" else "bottom_right"
        others.append((f"of_causality_{corner}", {"causal": corner}))
    sums = stages.log_sums.unsqueeze(-1)
    for name, changes in others:
        other = stages_of(inputs.replace(**changes))
        powers = (other.scores + other.bias - sums).exp() * other.allowed
        yield f"gradient_{name}", other.weights
        yield f"gradient_{name}", powers.masked_fill(sums == -math.inf, 0.0)


def _folded(heads: Tensor, groups: int, fold: str) -> Tensor:
    """The gradient of a head of key or value, of those of the heads in its group."""
    if groups == 1:
        return heads
    lead, rest = heads.shape[:-3], heads.shape[-2:]
    if fold == "tiled":
        return heads.reshape(*lead, groups, -1, *rest).sum(-4)
    parts = heads.reshape(*lead, -1, groups, *rest)
    if fold in ("first", "last"):
        return parts.select(-3, 0 if fold == "first" else -1)
    return parts.mean(-3) if fold == "mean" else parts.sum(-3)
