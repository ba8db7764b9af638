"""How far gradients are from the references, on the gradients of some query rows."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnbench.attention.attend import attend
from attnbench.benchmark.agreement import AT_ONCE, Part, item_dims, parts, ratio_of_errors
from attnbench.oracle.budget import Oracle
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_ROWS = 16
"""Number of query rows from which the gradients of an untimed call come."""
_MOST_PAIRS = 2**26  # of a query and a key in a mechanism's item, in float64
_MOVES, _UNITS = 4, 32.0
"""Number of random moves of inputs and parameters by one unit, and allowed error in such units.

A gradient is a sum over queries or keys whose terms may cancel, and a kernel may add them in
another order.
"""


def gradient_ratio(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    timed: Sequence[Tensor] = (),
    chance: random.Random | None = None,
) -> float:
    """The largest error of a gradient over the allowed error; at most 1 if they agree.

    The upstream gradient is zero except in a few query rows, so that all returned gradients come
    from them: those of the queries, of the keys and values that they see, and of every parameter.
    That of a timed call is all ones. There, the gradients of the queries are compared, and those of
    keys and values if nothing but these queries adds to them.

    Args:
        subject, module, inputs: the call.
        timed: the gradients of query, key and value that a timed call returned.
        chance: draws item and rows; by default, they are spread evenly.

    Raises:
        ValueError: the case is too large for gradients in float64.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    is_mechanism = subject.scoring is None
    if is_mechanism and query.shape[-2] * key.shape[-2] > _MOST_PAIRS:
        raise ValueError("the gradients of an item this long do not fit into memory in float64")
    part = next(parts(subject, inputs, chance=chance))
    part = Part(subject, inputs, part.items[:1], _rows_of(part, bool(timed)))
    shape = (*query.shape[:-1], value.shape[-1])
    inner = shape[item_dims(subject, query) :]
    upstream = torch.ones(1, *inner[:-2], len(part.rows), inner[-1], dtype=torch.float64)
    if timed:
        gradients = [part.of_query(timed[0])]
        if len(part.rows) == query.shape[-2] and query.shape[:-2] == key.shape[:-2]:
            gradients += map(part.of_key, timed[1:3])
    else:
        upstream.normal_(generator=torch.Generator().manual_seed(0))
        everywhere = torch.zeros(shape, dtype=torch.float64)
        everywhere.view(-1, *inner)[part.items[0]][..., part.rows, :] = upstream[0]
        gradients = _gradients(subject, module, inputs, everywhere, plain=False)
        gradients[:3] = part.of_query(gradients[0]), *map(part.of_key, gradients[1:3])
    return _ratio(part, module, upstream, gradients)


def _rows_of(part: Part, is_timed: bool) -> Sequence[int]:
    """The rows from which gradients come: of a timed call, all of the item if they fit.

    In a timed call all rows add to the gradients of keys and values. Where the reference cannot
    hold them at once, only the gradients of the queries in the part are compared.
    """
    query, key, value = part.whole.query, part.whole.key, part.whole.value
    if is_timed:
        heads = math.prod(query.shape[item_dims(part.subject, query) : -2])
        fits = heads * query.shape[-2] * key.shape[-2] * value.shape[-1] <= AT_ONCE
        return range(query.shape[-2]) if fits else part.rows
    step = 1 if part.subject.scoring is None else math.ceil(len(part.rows) / _ROWS)
    return part.rows[::step]


def _ratio(part: Part, module: nn.Module, upstream: Tensor, gradients: Sequence[Tensor]) -> float:
    """The largest error over the allowed error, for as many gradients as there are."""
    subject = part.subject
    oracle = Oracle(subject, module, part.inputs)
    targets = _gradients(subject, oracle.module, oracle.inputs, upstream, plain=True)
    step = max(oracle.eps, 2.0**-24)
    moves = [
        _gradients(subject, moved_module, moved_inputs, upstream, plain=True)
        for moved_module, moved_inputs in oracle.moved(step, _MOVES)
    ]
    largest = max(float(t.abs().max()) for t in targets)  # in one, all terms may cancel
    ratio = 0.0
    for n, (gradient, target) in enumerate(zip(gradients, targets, strict=False)):
        change = max(float((move[n] - target).abs().max()) for move in moves) * oracle.eps / step
        allowed = _UNITS * (change + oracle.eps * largest) + oracle.tiny
        errors = (gradient.detach().cpu().double() - target).abs()
        ratio = max(ratio, ratio_of_errors(errors, allowed))
    return ratio


def _gradients(
    subject: Subject, module: nn.Module, inputs: Inputs, upstream: Tensor, *, plain: bool
) -> list[Tensor]:
    """Gradients of query, key, value and each parameter; zeros for those that are not reached."""
    leaves = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    tensors = [leaves.query, leaves.key, leaves.value]
    variables = tensors + [p for p in module.parameters() if p.requires_grad]
    with torch.enable_grad():
        if plain and subject.scoring is not None:
            output = attend(module, *tensors, attn_mask=leaves.attn_mask, kernel="plain")
        else:
            output = subject.output(module, leaves)
        grads = torch.autograd.grad(output, variables, upstream.to(output), allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(grads, variables, strict=True)]
