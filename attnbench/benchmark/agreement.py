"""How far an output of attention is from the references.

In a large case, 64 query rows spread over its items are compared. The rows of a mechanism may
depend on each other, so for a mechanism whole items are compared, and one is enough. With
parameters per head, an item contains all heads, since a head alone would get the first's.

A mechanism is its own reference in float64, unless its spec says that it computes scaled
dot-product attention: then the reference is the textbook formula, which shares no code with it.

Of a layer, only the last item of a batch is compared; its reference runs alone, in one call without
a cache, since the other items must not affect it. A decoding call is compared in the item's last
row, any other call in all rows.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.benchmark.timed_calls import StepInputs
from attnbench.calling.scaled_dot_floats import scaled_dot_rows
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.oracle.budget import Oracle
from attnbench.oracle.textbook import TEXTBOOK, ScaledDot
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs

ROWS = 64
"""Number of query rows that are compared if a case has more."""

_AT_ONCE = 2**22  # most elements of (rows, S, Ev) that the reference holds at a time
_MECHANISM_ITEMS = 4  # each costs several runs of the whole module in float64
_WIDE = ("float64", "float32")
_SCALAR_WORK = 2**15  # most products of features that are computed in Python floats


@dataclass(frozen=True)
class Agreement:
    """The result of the comparison.

    Args:
        error_abs: largest absolute error.
        ratio: largest error over the allowed error; at most 1 if they agree.
        rows: number of query rows compared.
    """

    error_abs: float
    ratio: float
    rows: int

    @property
    def agrees(self) -> bool:
        """Whether the subject may be ranked."""
        return self.ratio <= 1.0


def is_scaled_dot(subject: Subject) -> bool:
    """Whether the spec of a mechanism says that it computes scaled dot-product attention."""
    return subject.maker.reference is scaled_dot_rows


def _by_items(subject: Subject) -> bool:
    """Whether whole items are compared, since rows may depend on each other."""
    return subject.scoring is None and not is_scaled_dot(subject)


def _oracle(subject: Subject, module: nn.Module, inputs: Inputs) -> Oracle:
    if not is_scaled_dot(subject):
        return Oracle(subject, module, inputs)
    if inputs.enable_gqa:
        groups = inputs.query.shape[-3] // inputs.key.shape[-3]
        repeat = functools.partial(torch.repeat_interleave, repeats=groups, dim=-3)
        key, value = repeat(inputs.key), repeat(inputs.value)
        inputs = inputs.replace(key=key, value=value, enable_gqa=False)
    oracle = Oracle(TEXTBOOK, ScaledDot(), inputs)
    oracle.eps = subject.eps(inputs.query.dtype)
    return oracle


def agreement(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    output: Tensor,
    max_rows: int = ROWS,
    chance: random.Random | None = None,
) -> Agreement:
    """Compare an output ``(..., L, Ev)`` with the references, on enough rows to trust it.

    Args:
        subject, module, inputs, output: the call and its result.
        max_rows: number of query rows that are compared if there are more.
        chance: draws items and rows; by default, they are spread evenly.
    """
    shape = (*inputs.query.shape[:-1], output.shape[-1])
    if tuple(output.shape) != shape:
        return Agreement(math.inf, math.inf, 0)
    error = ratio = 0.0
    count = 0
    for item, rows in blocks(subject, inputs, max_rows, chance):
        oracle = _oracle(subject, module, cut(subject, inputs, item, rows))
        block = item_of(subject, output.detach(), item)[..., rows, :].unsqueeze(0).cpu().double()
        if block.shape != oracle.output.shape:
            return Agreement(math.inf, math.inf, 0)
        errors = (block - oracle.output).abs()
        budget = oracle.budget()
        block_ratio = ratio_of_errors(errors, budget)
        if block_ratio > 1.0:  # a quick budget suffices to pass; to fail, the full one is computed
            budget = oracle.budget(sure=True)
            block_ratio = ratio_of_errors(errors, budget)
        if count == 0:
            block_ratio = max(block_ratio, _scalar_ratio(subject, oracle, block, budget))
        error, ratio = max(error, _largest(errors)), max(ratio, block_ratio)
        count += len(rows)
    return Agreement(error, ratio, count)


def layer_agreement(
    subject: LayerSubject, module: nn.Module, inputs: LayerInputs, output: Tensor
) -> Agreement:
    """Compare the output of a call with that of the whole sequence in the widest dtype."""
    item_output = output[-1:]
    hidden = inputs.hidden
    with torch.no_grad():
        if isinstance(inputs, StepInputs):
            hidden = torch.cat([inputs.past, hidden], 1)
        rows = item_output.shape[1]
        sequence = hidden[-1:].cpu()
        module_copy = copy.deepcopy(module).cpu()
        dtype_name = next((name for name in _WIDE if name in subject.dtypes), subject.dtypes[0])
        dtype = getattr(torch, dtype_name)
        expected, _ = subject.call(copy.deepcopy(module_copy).to(dtype), sequence.to(dtype))
        errors = (item_output.cpu().double() - expected[:, -rows:].double()).abs()
        result = _agreement(errors, floor_of(subject, expected, hidden.dtype))
        if not result.agrees:  # a fixed tolerance suffices to pass; to fail, measure the rounding
            result = _agreement(errors, rounding_of(subject, module_copy, sequence)[:, -rows:])
    return result


def _agreement(errors: Tensor, allowed: Tensor | float) -> Agreement:
    largest = float(errors.max()) if errors.numel() else 0.0
    error = largest if math.isfinite(largest) else math.inf
    return Agreement(error, ratio_of_errors(errors, allowed), errors.shape[1])


def _scalar_ratio(subject: Subject, oracle: Oracle, output: Tensor, budget: Tensor) -> float:
    """The error ratio to the reference in Python floats, on as many rows as are cheap.

    Only this reference shows that the module computes the function of its name, since the float64
    reference runs the same module.
    """
    inputs = oracle.inputs
    work = inputs.key.shape[-2] * inputs.query.shape[-1]
    if _by_items(subject):
        work *= inputs.query.shape[-2]  # a mechanism's reference computes all rows at once
    if not oracle.has_scalar or work > _SCALAR_WORK:
        return 0.0
    rows = oracle.rows(_SCALAR_WORK // inputs.query.shape[-1])
    errors = (oracle.select(output, rows) - oracle.scalar(rows)).abs()
    return ratio_of_errors(errors, oracle.select(budget.broadcast_to(output.shape), rows))


def _largest(values: Tensor) -> float:
    largest = float(values.max()) if values.numel() else 0.0
    return math.inf if math.isnan(largest) else largest


def ratio_of_errors(errors: Tensor, budget: Tensor | float) -> float:
    """The largest error over the allowed error; infinite if either is not a finite number."""
    ratio = torch.where(errors == 0, torch.zeros_like(errors), errors / budget)
    is_finite = torch.isfinite(errors + budget)
    return _largest(torch.where(is_finite, ratio, math.inf))


def blocks(
    subject: Subject, inputs: Inputs, max_rows: int = ROWS, chance: random.Random | None = None
) -> Iterator[tuple[int, list[int]]]:
    """Yield items and the rows to compare in each, few enough to fit into memory at once."""
    count, q_len = _item_dimensions(subject, inputs.query), inputs.query.shape[-2]
    items, heads = math.prod(inputs.query.shape[:count]), math.prod(inputs.query.shape[count:-2])
    size = heads * inputs.key.shape[-2] * max(inputs.value.shape[-1], inputs.key.shape[-1])
    if _by_items(subject):
        limit = min(_MECHANISM_ITEMS, math.ceil(max_rows / q_len), _AT_ONCE // (q_len * size))
        most = max(1, min(items, limit))
        for item in _choose(items, most, chance):
            yield item, list(range(q_len))
        return
    chosen_items = _choose(items, min(items, 4) if q_len > 1 else min(items, max_rows), chance)
    step = max(1, _AT_ONCE // size)
    for item in chosen_items:
        rows = _choose(q_len, min(q_len, math.ceil(max_rows / len(chosen_items))), chance)
        for start in range(0, len(rows), step):
            yield item, rows[start : start + step]


def _choose(count: int, size: int, chance: random.Random | None) -> list[int]:
    """``size`` numbers below ``count``: drawn, or evenly spread from the first to the last."""
    if chance is not None:
        return sorted(chance.sample(range(count), size))
    if size == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (size - 1)) for i in range(size)})


def _item_dimensions(subject: Subject, tensor: Tensor) -> int:
    """The number of leading sizes that index items: all, or all but the heads'."""
    leading = tensor.dim() - 2
    return max(0, leading - 1) if subject.conventions.per_head else leading


def item_of(subject: Subject, tensor: Tensor, item: int) -> Tensor:
    """One item of ``(*lead, N, E)``: ``(N, E)``, or ``(H, N, E)`` with parameters per head."""
    inner = tensor.shape[_item_dimensions(subject, tensor) :]
    return tensor.reshape(-1, *inner)[item]


def cut(subject: Subject, inputs: Inputs, item: int, rows: list[int]) -> Inputs:
    """Cut one item and some query rows out of the inputs, ``(1, rows, E)``.

    Masks, lengths and causality are combined into one mask. With parameters per head, the item
    contains all heads: ``(1, H, rows, E)``.
    """
    query = inputs.query
    lead, q_len, kv_len = tuple(query.shape[:-2]), query.shape[-2], inputs.key.shape[-2]
    outer, shape = lead[: _item_dimensions(subject, query)], (*lead, q_len, kv_len)

    mask = inputs.mask.as_tensor()
    if mask is not None:
        place = tuple(map(int, np.unravel_index(item, outer)))
        mask = mask.broadcast_to(shape)[place][..., rows, :].unsqueeze(0)
    slots = kv_item(subject, inputs, item)
    return Inputs(
        item_of(subject, query, item)[..., rows, :].unsqueeze(0),
        item_of(subject, inputs.key, slots).unsqueeze(0),
        item_of(subject, inputs.value, slots).unsqueeze(0),
        attn_mask=mask,
        enable_gqa=inputs.enable_gqa and subject.conventions.per_head,
    )


def kv_item(subject: Subject, inputs: Inputs, item: int) -> int:
    """The item of key and value that belongs to an item of the query; grouped heads share one."""
    if not inputs.enable_gqa or subject.conventions.per_head:
        return item
    heads, kv_heads = inputs.query.shape[-3], inputs.key.shape[-3]
    batch, head = divmod(item, heads)
    return batch * kv_heads + head // (heads // kv_heads)
