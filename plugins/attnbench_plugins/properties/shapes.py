"""Invariants on shapes: the output's, leading sizes, sizes of 1, grouped heads, and masks."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, Subject
from attnbench.errors import DtypeError
from attnbench.strategies import CaseStrategy, changed
from attnbench.testing import (
    Baseline,
    agree_within,
    benign,
    explicit,
    has_gradients,
    knows_heads,
    leaves_of,
    same_gradients,
    with_mask,
)
from attnbench_plugins.properties import invariant

_BLOCK = 128
"""The largest number of queries or keys that many an implementation takes at once."""

_GROUPED_MASKS = (
    "none",
    "boolean",
    "boolean_shared",
    "padding",
    "causal",
    "causal_padding",
    "floating",
    "lengths_2d",
)


@invariant(cases=benign, beyond=(Case((2, 34), 40, 5),), applies=knows_heads)
def leading_sizes_fold(subject: Subject, case: Case) -> None:
    """The same items in other leading sizes give the same output."""
    base = Baseline(subject, case)
    inputs = explicit(base.inputs)
    count = math.prod(case.lead)
    leads = [(count,), (1, *case.lead), (*case.lead, 1)]
    if count == 1:
        leads.append(())
    for lead in leads:
        if lead == case.lead:
            continue

        def reshaped(tensor: Tensor, lead: tuple[int, ...] = lead) -> Tensor:
            return tensor.reshape(*lead, *tensor.shape[-2:])

        mask = None if inputs.attn_mask is None else reshaped(inputs.attn_mask)
        base.expect(
            base.run(inputs.map(reshaped).replace(attn_mask=mask)),
            f"with leading sizes {lead}, output",
            f"the same items with leading sizes {case.lead}",
            taken=reshaped,
        )


def _sees_groups(subject: Subject) -> str | None:
    if subject.kind == "kernel":
        return "keys are repeated for grouped heads before a kernel is called: it never sees one"
    return None if "enable_gqa" in subject.accepts else "does not accept enable_gqa"


@invariant(
    cases=benign,
    masks=_GROUPED_MASKS,
    leads=(1, 2, 3),
    beyond=(Case((1, 2), 3, 150, mask="floating"), Case((1, 2), 70, 75)),
    variants={"group": (2, 3), "scale": ("own", "given")},
    applies=_sees_groups,
)
def grouped_heads_equal_expanded_heads(subject: Subject, case: Case) -> None:
    """With enable_gqa a head of key and value serves a group of queries' heads."""
    heads, group = case.lead[-1], case.variant("group", 2)
    base = Baseline(subject, case.replace(lead=(*case.lead[:-1], heads * group)))
    given = base.inputs.replace(
        key=base.inputs.key[..., :heads, :, :], value=base.inputs.value[..., :heads, :, :]
    )
    if "scale" in subject.accepts and case.variant("scale", "own") == "given":
        given = given.replace(scale=0.75)

    def expanded(inputs: Inputs) -> Inputs:
        key, value = (t.repeat_interleave(group, -3) for t in (inputs.key, inputs.value))
        return inputs.replace(key=key, value=value)

    what = f"with {heads * group} heads of the query and {heads} of key and value"
    what += "" if given.scale is None else f" and scale={given.scale:g}"
    other = f"each head of key and value given {group} times over"
    base = base.on(expanded(given))
    base.expect(base.run(given.replace(enable_gqa=True)), f"{what}, output", other)
    if has_gradients(subject, case):
        inputs, leaves = leaves_of(base.module, given)
        got, expected = base.run(inputs.replace(enable_gqa=True)), base.run(expanded(inputs))
        weight = base.other(base.output)
        same_gradients(got, expected, leaves, weight, what, other, eps=base.eps)
    if "return_weights" in subject.accepts and case.regime == "normal":
        pairs = (given.replace(enable_gqa=True), base.inputs)
        _, one = subject.output_and_weights(base.module, pairs[0])
        _, two = subject.output_and_weights(base.module, pairs[1])
        if one is not None and two is not None:
            tolerance = 64 * subject.eps(one.dtype)
            agree_within(one, two, tolerance, f"{what}, weights handed back", other)


def _masks(base: Baseline) -> Iterator[Tensor]:
    """Masks with every dimension in turn of size 1, as they are given to broadcast."""
    lead, q_len, kv_len = base.case.lead, base.case.q_len, base.case.kv_len
    ones = (1,) * len(lead)
    shapes: list[tuple[int, ...]] = [(1, kv_len), (q_len, kv_len), (q_len, 1)]
    if lead:
        shapes += [(lead[0], *ones[1:], 1, kv_len), (lead[0], *ones[1:], q_len, kv_len)]
    if len(lead) > 1:
        shapes += [(1, *lead[1:], 1, kv_len), (*lead[1:], q_len, kv_len)]
    first = base.case.variant("shape", 0) % len(shapes)
    floating = base.case.variant("form", "boolean") == "floating"
    chosen = [(shapes[first], floating), (shapes[first - 1], floating)]
    if q_len == 1 and len(set(lead)) == 1 < len(lead):  # no size tells items from heads
        chosen = [(shapes[-1], True), (shapes[-1], False)]
    if q_len > _BLOCK:  # which queries are taken in blocks of
        chosen = [((1, kv_len), True), ((1, kv_len), False)]
    for shape, is_bias in chosen:
        mask = torch.rand(shape, generator=base.generator) < 0.6
        if is_bias:
            bias = torch.randn(shape, generator=base.generator)
            yield bias.masked_fill(~mask, -math.inf)
        else:
            yield mask


def _broadcasts(subject: Subject) -> CaseStrategy:
    equal = functools.partial(_with_equal_sizes, subject)
    space = benign(
        subject,
        masks=("none",),
        regimes=("normal", "tiny"),
        beyond=(Case((1,), 2 * _BLOCK + 3, 12),),
        variants={"shape": range(7), "form": ("boolean", "floating")},
    )
    return changed(space, *[lambda case: case] * 2, equal, functools.partial(equal, one_query=True))


@invariant(cases=_broadcasts)
def masks_broadcast(subject: Subject, case: Case) -> None:
    """A mask with dimensions of size 1 means the same as that mask expanded."""
    base = Baseline(subject, case)
    for mask in _masks(base):
        shape = (*case.lead, case.q_len, case.kv_len)
        base = base.on(with_mask(base.inputs, mask.expand(shape).contiguous()))
        live = base.allowed.any(-1, keepdim=True)

        def rows(output: Tensor, live: Tensor = live) -> Tensor:
            return output.masked_fill(~live, 0.0)

        base.expect(
            rows(base.run(with_mask(base.inputs, mask))),
            f"with a mask {tuple(mask.shape)} for scores {shape}, output",
            "the same mask expanded",
            taken=rows,
        )


def _with_equal_sizes(subject: Subject, case: Case, *, one_query: bool = False) -> Case:
    """The case with B == L == S, or one query: no shape tells a mask on a wrong axis."""
    size = max(2, min(case.q_len, 4))
    lead, q_len = ((size, size), 1) if one_query else ((size,) * len(case.lead), size)
    equal = case.replace(lead=lead, q_len=q_len, kv_len=size)
    return equal if subject.legal(equal) == equal else case


@invariant(max_len=33)
def output_has_shape_and_dtype(subject: Subject, case: Case) -> None:
    """The output is (..., L, Ev), in the dtype and on the device of the query."""
    module, inputs = subject.build(case)
    output = subject.output(module, inputs)
    if not isinstance(output, Tensor):
        raise InvariantViolation(f"output is a {type(output).__name__}, but should be a tensor")
    wanted = (*inputs.query.shape[:-1], inputs.value.shape[-1])
    for name, got, should, why in (
        ("shape", tuple(output.shape), wanted, "(..., L, Ev) of query and value"),
        ("dtype", output.dtype, inputs.query.dtype, "the query's"),
        ("device", output.device, inputs.query.device, "the query's"),
    ):
        if got != should:
            raise InvariantViolation(f"output.{name} = {got}, but should be {should}, {why}")
    mask = inputs.attn_mask
    if mask is None or mask.dtype in (torch.bool, torch.float32, torch.float64):
        return
    try:
        subject.output(module, inputs.replace(attn_mask=mask.float()))
    except DtypeError as error:
        raise InvariantViolation(f"with a floating mask in float32, {error}") from None
    except Exception:  # a mask of another dtype need not be taken
        return
