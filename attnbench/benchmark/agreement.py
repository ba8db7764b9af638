"""How far an output is from the references, on as many rows of it as one can trust.

In a large case, 64 query rows spread over its items are compared with the references. The rows of a
mechanism may depend on each other, so for a mechanism whole items are compared, and one is enough.
With parameters per head, an item contains all heads, since a head alone would get the first's.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.benchmark.timed_calls import StepInputs
from attnbench.calling.scaled_dot import scaled_dot_rows
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.oracle.budget import Oracle, expected
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs

ROWS = 64
"""Number of query rows that are compared if a case has more."""

AT_ONCE = 2**22
"""Most elements of ``(rows, S, Ev)`` that the reference holds at a time."""

_MOST_ITEMS = 4  # of a mechanism, each costs several runs of the whole module in float64
_WIDE = ("float64", "float32")
_SCALAR_WORK = 2**15  # most products of features that are computed in Python floats


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison.

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


@dataclass(frozen=True)
class Part:
    """The same query rows of some items of a call; with parameters per head, of all their heads."""

    subject: Subject
    whole: Inputs
    items: Sequence[int]
    rows: Sequence[int]

    def of_query(self, tensor: Tensor) -> Tensor:
        """The rows ``(items, rows, E)`` of ``(*lead, L, E)``, or ``(items, H, rows, E)``."""
        inner = tensor.shape[item_dims(self.subject, tensor) :]
        return tensor.reshape(-1, *inner)[[*self.items]][..., self.rows, :]

    def of_key(self, tensor: Tensor) -> Tensor:
        """All rows of the items of key or value, which grouped heads share."""
        inner = tensor.shape[item_dims(self.subject, tensor) :]
        return tensor.reshape(-1, *inner)[[self._key_item(item) for item in self.items]]

    def _key_item(self, item: int) -> int:
        """The item of key and value that belongs to one of the query."""
        if not self.whole.enable_gqa or self.subject.conventions.per_head:
            return item
        heads, kv_heads = self.whole.query.shape[-3], self.whole.key.shape[-3]
        batch, head = divmod(item, heads)
        return batch * kv_heads + head // (heads // kv_heads)

    @property
    def inputs(self) -> Inputs:
        """The inputs of the part; masks, lengths and causality are combined into one mask."""
        query, key = self.whole.query, self.whole.key
        mask = self.whole.mask.as_tensor()
        if mask is not None:
            outer = query.shape[: item_dims(self.subject, query)]
            mask = mask.broadcast_to((*query.shape[:-1], key.shape[-2]))
            places = np.array(np.unravel_index([*self.items], outer)).T.tolist()
            mask = torch.stack([mask[tuple(place)][..., self.rows, :] for place in places])
        return Inputs(
            self.of_query(query),
            self.of_key(key),
            self.of_key(self.whole.value),
            attn_mask=mask,
            enable_gqa=self.whole.enable_gqa and self.subject.conventions.per_head,
        )

    def oracle(self, module: nn.Module) -> Oracle:
        """The expected output of the part."""
        if not is_scaled_dot(self.subject):
            return Oracle(self.subject, module, self.inputs)
        oracle = expected(self.inputs)
        oracle.eps = self.subject.eps(self.whole.query.dtype)
        return oracle


def item_dims(subject: Subject, tensor: Tensor) -> int:
    """The number of leading sizes that index items: all, or all but the heads'."""
    leading = tensor.dim() - 2
    return max(0, leading - 1) if subject.conventions.per_head else leading


def parts(
    subject: Subject, inputs: Inputs, max_rows: int = ROWS, chance: random.Random | None = None
) -> Iterator[Part]:
    """Yield the parts of a call to compare, few enough rows each to fit into memory at once."""
    dims, q_len = item_dims(subject, inputs.query), inputs.query.shape[-2]
    items, heads = math.prod(inputs.query.shape[:dims]), math.prod(inputs.query.shape[dims:-2])
    size = heads * inputs.key.shape[-2] * max(inputs.value.shape[-1], inputs.key.shape[-1])
    by_items, at_once = _by_items(subject), max(1, AT_ONCE // size)
    most = _MOST_ITEMS if q_len > 1 else max_rows
    if by_items:
        most = min(_MOST_ITEMS, math.ceil(max_rows / q_len))
    chosen = _choose(items, max(1, min(items, most)), chance)
    count = q_len if by_items else min(q_len, math.ceil(max_rows / len(chosen)))
    rows = _choose(q_len, count, chance)
    step = count if by_items else at_once
    together = max(1, at_once // count)
    for first in range(0, len(chosen), together):
        for start in range(0, len(rows), step):
            group = chosen[first : first + together]
            yield Part(subject, inputs, group, rows[start : start + step])


def _choose(count: int, size: int, chance: random.Random | None) -> list[int]:
    """``size`` numbers below ``count``: drawn, or evenly spread from the first to the last."""
    if chance is not None:
        return sorted(chance.sample(range(count), size))
    if size == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (size - 1)) for i in range(size)})


@torch.no_grad()
def agreement(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    output: Tensor,
    *,
    max_rows: int = ROWS,
    chance: random.Random | None = None,
    with_scalar: bool = True,
    with_floor: bool = False,
) -> Agreement:
    """Compare an output ``(..., L, Ev)`` with the references, on enough rows to trust it.

    The allowed error is that of few random moves or, if it is larger, of many; the ratio is to the
    last one tried.

    Args:
        subject, module, inputs, output: the call and its result.
        max_rows: number of query rows that are compared if there are more.
        chance: draws items and rows; by default, they are spread evenly.
        with_scalar: whether the reference in Python floats, which is slow, is one of them.
        with_floor: whether agreement within the least allowed error, which is quick, is enough.
    """
    if isinstance(subject, LayerSubject) and isinstance(inputs, LayerInputs):
        return _layer_agreement(subject, module, inputs, output)
    error = ratio = 0.0
    count = 0
    for part in parts(subject, inputs, max_rows, chance):
        if output.shape[:-1] != inputs.query.shape[:-1]:
            return Agreement(math.inf, math.inf, 0)
        oracle = part.oracle(module)
        block = part.of_query(output.detach()).cpu().double()
        if block.shape != oracle.output.shape:
            return Agreement(math.inf, math.inf, 0)
        errors = (block - oracle.output).abs()
        scalar = None if count or not with_scalar else _scalar(subject, oracle, block)
        part_ratio = math.inf
        budgets: list[Callable[[], Tensor]] = [
            oracle.floor,
            oracle.budget,
            functools.partial(oracle.budget, sure=True),
        ]
        for budget in budgets if with_floor else budgets[1:]:
            whole = budget().broadcast_to(errors.shape)
            part_ratio = ratio_of_errors(errors, whole)
            if scalar is not None:
                scalar_rows, scalar_errors = scalar
                of_rows = ratio_of_errors(scalar_errors, oracle.select(whole, scalar_rows))
                part_ratio = max(part_ratio, of_rows)
            if part_ratio <= 1.0:
                break
        error, ratio = max(error, _largest(errors)), max(ratio, part_ratio)
        count += len(part.items) * len(part.rows)
    return Agreement(error, ratio, count)


def _scalar(
    subject: Subject, oracle: Oracle, output: Tensor
) -> tuple[list[tuple[int, int]], Tensor] | None:
    """As many rows as are cheap in Python floats, and their errors to that reference.

    Only this reference shows that the module computes the function of its name, since the float64
    reference runs the same module.
    """
    inputs = oracle.inputs
    work = inputs.key.shape[-2] * inputs.query.shape[-1]
    if _by_items(subject):
        work *= inputs.query.shape[-2]  # a mechanism's reference computes all rows at once
    if not oracle.has_scalar or work > _SCALAR_WORK:
        return None
    rows = oracle.rows(_SCALAR_WORK // inputs.query.shape[-1])
    return rows, (oracle.select(output, rows) - oracle.scalar(rows)).abs()


def _largest(values: Tensor) -> float:
    largest = float(values.max()) if values.numel() else 0.0
    return math.inf if math.isnan(largest) else largest


def ratio_of_errors(errors: Tensor, budget: Tensor | float) -> float:
    """The largest error over the allowed error; infinite if either is not a finite number."""
    ratio = torch.where(errors == 0, torch.zeros_like(errors), errors / budget)
    is_finite = torch.isfinite(errors + budget)
    return _largest(torch.where(is_finite, ratio, math.inf))


def _layer_agreement(
    subject: LayerSubject, module: nn.Module, inputs: LayerInputs, output: Tensor
) -> Agreement:
    """Compare the output of a call with that of the whole sequence in the widest dtype."""
    hidden = inputs.hidden
    if isinstance(inputs, StepInputs):
        hidden = torch.cat([inputs.past, hidden], 1)
    rows, sequence = output.shape[1], hidden[-1:].cpu()
    module_copy = copy.deepcopy(module).cpu()
    dtype_name = next((name for name in _WIDE if name in subject.dtypes), subject.dtypes[0])
    dtype = getattr(torch, dtype_name)
    target, _ = subject.call(copy.deepcopy(module_copy).to(dtype), sequence.to(dtype))
    errors = (output[-1:].cpu().double() - target[:, -rows:].double()).abs()
    ratio = ratio_of_errors(errors, floor_of(subject, target, hidden.dtype))
    if not ratio <= 1.0:  # a fixed tolerance suffices to pass; to fail, measure the rounding
        rounding = rounding_of(subject, module_copy, sequence)[:, -rows:]
        ratio = ratio_of_errors(errors, rounding)
    return Agreement(_largest(errors), ratio, rows)
