"""Agreement of gradients: the gradients of a few query rows, compared with autograd in float64.

The upstream gradient is zero except in these rows, so that all returned gradients come from them:
those of the queries, of the keys and values that the queries see, and of every parameter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnbench.attention.attend import attend
from attnbench.benchmark.agreement import (
    blocks,
    cut,
    item_of,
    kv_item,
    ratio_of_errors,
)
from attnbench.oracle.budget import Oracle
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_ROWS = 16
_MOST = 2**26
"""Most query-key pairs in a mechanism's item for which gradients in float64 fit into memory."""
_MOVES, _UNITS = 4, 32.0
"""Number of random moves of inputs and parameters by one unit, and allowed error in such units.

A gradient is a sum over queries or keys whose terms may cancel, and a kernel may add them in
another order.
"""

Gradients = list[Tensor]


def gradient_ratio(subject: Subject, module: nn.Module, inputs: Inputs) -> float:
    """The largest error of a gradient over the allowed error; at most 1 if they agree.

    Raises:
        ValueError: the case is too large for gradients in float64.
    """
    pairs = inputs.query.shape[-2] * inputs.key.shape[-2]
    is_mechanism = subject.scoring is None
    if is_mechanism and pairs > _MOST:
        raise ValueError("the gradients of an item this long do not fit into memory in float64")
    item, rows = next(blocks(subject, inputs))
    rows = rows if is_mechanism else rows[:_ROWS]
    shape = (*inputs.query.shape[:-1], inputs.value.shape[-1])
    generator = torch.Generator().manual_seed(0)
    upstream = torch.zeros(shape, dtype=torch.float64)
    view = item_of(subject, upstream, item)
    part = torch.randn(view[..., rows, :].shape, generator=generator, dtype=torch.float64)
    view[..., rows, :] = part
    part = part.unsqueeze(0)
    gradients = _gradients(subject, module, inputs, upstream, plain=False)
    slots = kv_item(subject, inputs, item)
    gradients[0] = item_of(subject, gradients[0], item)[..., rows, :].unsqueeze(0)
    gradients[1:3] = (item_of(subject, gradient, slots).unsqueeze(0) for gradient in gradients[1:3])
    return _ratio(subject, module, cut(subject, inputs, item, rows), part, gradients)


def timed_gradient_ratio(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    sample: Sequence[Tensor],
    chance: random.Random,
) -> float:
    """The same ratio for a timed call, whose upstream gradient is all ones.

    In one drawn item, the gradients of some queries are compared. If the mechanism requires all
    queries, those of keys and values are compared as well.

    Args:
        subject, module, inputs: the call.
        sample: the gradients of query, key and value that the call returned.
        chance: draws item and rows.
    """
    item, rows = next(blocks(subject, inputs, chance=chance))
    gradients = [item_of(subject, sample[0], item)[..., rows, :].unsqueeze(0)]
    if len(rows) == inputs.query.shape[-2] and kv_item(subject, inputs, item) == item:
        is_ungrouped = (
            inputs.query.shape[:-2] == inputs.key.shape[:-2]
        )  # no other head adds to them
        gradients += [item_of(subject, t, item).unsqueeze(0) for t in sample[1:3] if is_ungrouped]
    shape = (*gradients[0].shape[:-1], inputs.value.shape[-1])
    ones = torch.ones(shape, dtype=torch.float64)
    return _ratio(subject, module, cut(subject, inputs, item, rows), ones, gradients)


def _ratio(
    subject: Subject, module: nn.Module, inputs: Inputs, upstream: Tensor, gradients: Gradients
) -> float:
    """The largest error over the allowed error, for as many gradients as there are."""
    oracle = Oracle(subject, module, inputs)
    expected = _gradients(subject, oracle.module, oracle.inputs, upstream, plain=True)
    step = max(oracle.eps, 2.0**-24)
    moves = [
        _gradients(subject, moved_module, moved_inputs, upstream, plain=True)
        for moved_module, moved_inputs in oracle.moved(step, _MOVES)
    ]
    largest = max(float(t.abs().max()) for t in expected)  # in one, all terms may cancel
    ratio = 0.0
    for n, (gradient, target) in enumerate(zip(gradients, expected, strict=False)):
        change = max(float((move[n] - target).abs().max()) for move in moves) * oracle.eps / step
        allowed = _UNITS * (change + oracle.eps * largest) + oracle.tiny
        errors = (gradient.detach().cpu().double() - target).abs()
        ratio = max(ratio, ratio_of_errors(errors, allowed))
    return ratio


def _gradients(
    subject: Subject, module: nn.Module, inputs: Inputs, upstream: Tensor, *, plain: bool
) -> Gradients:
    """Gradients of query, key, value and each parameter; zeros for those that are not reached."""
    leaves = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    variables = [leaves.query, leaves.key, leaves.value]
    variables += [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        if plain and subject.scoring is not None:
            output = attend(
                module,
                leaves.query,
                leaves.key,
                leaves.value,
                attn_mask=leaves.attn_mask,
                kernel="plain",
            )
        else:
            output = subject.output(module, leaves)
        grads = torch.autograd.grad(output, variables, upstream.to(output), allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(grads, variables, strict=True)]
