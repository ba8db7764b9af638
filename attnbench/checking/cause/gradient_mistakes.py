"""What the backward pass of scaled dot products does otherwise, where the output is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.oracle.textbook import is_textbook, stages_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_LEAVES = ("query", "key", "value")
_NEAR = 1e-4
_CASES = (
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64"),
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64", mask="causal", seed=1),
    Case((2, 3), 5, 5, 8, 8, 8, dtype="float64", mask="boolean", seed=2),
)

Gradients = tuple[Tensor, Tensor, Tensor]
"""The gradients by query, key and value."""

Named = tuple[str, Gradients]


def gradient_mistake(subject: Subject) -> str | None:
    """The mistake that gives the wrong gradients of a subject in all calls that it has wrong.

    The calls are those without options, and with a scale, a soft cap or grouped heads.
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
    return common.pop() if common and len(common) == 1 else None


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
    scale = inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
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
    open_ = stages.replace(allowed=torch.ones_like(stages.allowed)).weights
    unmasked = open_ * (slopes - (open_ * slopes).sum(-1, keepdim=True))
    yield "right", of(terms * slope)
    yield "gradient_without_softcap", of(terms)
    yield "gradient_without_sum", of(weights * slopes * slope)
    yield "gradient_without_scale", of(terms * slope, 1.0)
    yield "gradient_of_default_scale", of(terms * slope, inputs.query.shape[-1] ** -0.5)
    yield "gradient_scaled_twice", of(terms * slope, scale**2)
    yield "gradient_negated", of(-terms * slope)
    yield "gradient_without_mask", of(unmasked * slope, shown=open_)
    for fold in ("tiled", "first", "last", "mean") if groups > 1 else ():
        yield f"gradient_of_groups_{fold}", of(terms * slope, fold=fold)


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
