"""Invariants on memory layouts: strides and offsets change neither output nor gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, Subject
from attnbench.testing import (
    KINDS,
    LAYOUTS,
    Baseline,
    agree_within,
    differentiate,
    has_no_gradients,
    lay_out,
    leaves_of,
    ordinary,
    same_gradient,
)
from attnbench_plugins.properties import invariant

_RUNS, _MARGIN = 16, 64.0
"""Runs on inputs that differ in their last bits, and the multiple of what they move allowed.

A right cosine came to 8 times that in the worst of 482 comparisons, on 12 seeds of thorough; a
backward pass that reads its gradient in a wrong order is off by as much as the gradient itself.
"""


@invariant(
    kinds=KINDS, cases=ordinary, layouts=tuple(name for name in LAYOUTS if name != "contiguous")
)
def layouts_agree(subject: Subject, case: Case) -> None:
    """Strides and offsets of the inputs do not change the output."""
    base = Baseline(subject, case)
    plain = base.on(base.inputs.map(lambda tensor: tensor.contiguous()))
    same = "the same call with contiguous ones"
    plain.expect(base.output, f"with {case.layout} query, key and value, output", same)
    mask = base.inputs.attn_mask
    if mask is not None:
        got = base.run(base.inputs.replace(attn_mask=lay_out(mask, "transposed")))
        plain.expect(
            got, "with a transposed attn_mask, output", "the same call with a contiguous one"
        )


def _gradients(
    base: Baseline, inputs: Inputs, handed: Tensor, run: Callable[[Inputs], Tensor]
) -> dict[str, Tensor | None]:
    given, leaves = leaves_of(base.module, inputs)
    for name in given.floating:  # a leaf whose items share memory takes as_strided's gradient
        tensor = getattr(inputs, name)
        own = [slice(1 if step == 0 else None) for step in tensor.stride()]
        leaves[name] = tensor.detach()[tuple(own)].requires_grad_()
        given = given.replace(**{name: leaves[name].expand(tensor.shape)})
    output = run(given)
    if not output.requires_grad:  # scores that depend on nothing
        return dict.fromkeys(leaves)
    before = handed.clone()
    found = differentiate(output, list(leaves.values()), handed)
    agree_within(handed, before, 0.0, "the gradient handed in, read after the backward pass", "it")
    return dict(zip(leaves, found, strict=True))


def _scores(base: Baseline, inputs: Inputs) -> Tensor:
    scores = base.subject.scores(base.module, inputs)
    assert scores is not None
    return scores


@invariant(
    cases=ordinary,
    layouts=tuple(LAYOUTS),
    dtypes=("float64", "float32"),
    variants={
        "gradient": ("expanded", "transposed", "offset"),
        "of": ("output", "scores"),
    },
    applies=has_no_gradients,
)
def gradient_layouts_agree(subject: Subject, case: Case) -> None:
    """Strides of the inputs and of the gradient handed in do not change gradients."""
    base = Baseline(subject, case)
    run, whose = base.run, ""
    if (
        subject.kind == "scoring" and case.variant("of", "output") == "scores"
    ):  # whose scores another may differentiate
        run, whose = functools.partial(_scores, base), " of the scores"
    like = run(base.inputs)
    weight = torch.randn(like.shape, generator=base.generator).to(like)
    layout = case.variant("gradient", "expanded")
    if layout != "expanded":
        named = {"transposed": "a transposed gradient,", "offset": "a slice of a gradient,"}
        way, given, even = named[layout], lay_out(weight, layout), weight
    else:
        even = torch.ones_like(weight)
        way = "an expanded gradient of ones, as .sum() hands in,"
        given = even.new_ones(()).expand(even.shape)
    plain = base.inputs.map(lambda tensor: tensor.contiguous())
    found = _gradients(base, base.inputs, given, run)
    expected = _gradients(base, plain, even, run)
    for name, got in found.items():
        should = _summed(expected[name], got)
        quantity = f"handed {way} the gradient{whose} by {name}"
        try:
            same_gradient(got, should, quantity, "the same call all contiguous", eps=base.eps)
        except InvariantViolation:
            bits = functools.partial(_last_bits, generator=base.generator)
            near = [_gradients(base, plain.map(bits), bits(even), run)[name] for _ in range(_RUNS)]
            near = [_summed(one, got) for one in near]
            if not _is_rounding(got, should, near):
                raise


def _summed(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    """A gradient by each item, summed over those that share memory."""
    return gradient if gradient is None or like is None else gradient.sum_to_size(like.shape)


def _is_rounding(
    got: Tensor | None, expected: Tensor | None, near: Iterable[Tensor | None]
) -> bool:
    """Whether two gradients differ by what the last bits of the inputs move them by.

    Where terms cancel, as in a cosine of single numbers, these round by more than their sum tells.
    """
    if got is None or expected is None:
        return False
    moved = [float((one - expected).abs().max()) for one in near if one is not None]
    off = float((got - expected).abs().max())
    return off <= _MARGIN * max(moved, default=0.0)  # false for a NaN


def _last_bits(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The tensor with each number moved by one unit in its last place, or not."""
    ways = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor)
    return tensor + tensor.abs() * ways * torch.finfo(tensor.dtype).eps
