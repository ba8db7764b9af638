"""Agreement: how far the output that is about to be timed is from the references.

Of a large case, 64 query rows spread over its items are compared. A mechanism's rows may depend on
each other, so of a large case it is whole items that are compared, and one of them suffices. Where
parameters go by head, an item holds all heads, since one alone would get those of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench.attention.masks import causal_mask, valid_lens_mask
from attnbench.oracle.budget import Oracle
from attnbench.specs import MechanismSpec
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = ["ROWS", "Agreement", "agreement", "blocks", "cut", "item_of", "kv_item"]

ROWS = 64
"""Query rows that are compared when a case has more."""

_AT_ONCE = 2**22  # elements of (rows, S, Ev) that the reference holds at a time
_MECHANISM_ITEMS = 4  # each takes some runs of the whole module in float64
_SCALAR_WORK = 2**15  # products of query and key features that Python floats are asked for


@dataclass(frozen=True)
class Agreement:
    """What the comparison gave.

    Args:
        error_abs: largest absolute error.
        ratio: largest error over what is allowed; up to 1 is agreement.
        rows: query rows that were compared.
    """

    error_abs: float
    ratio: float
    rows: int

    @property
    def agrees(self) -> bool:
        """Whether the subject may be ranked."""
        return self.ratio <= 1.0


def agreement(subject: Subject, module: nn.Module, inputs: Inputs, output: Tensor) -> Agreement:
    """Hold an output ``(..., L, Ev)`` against the reference, on rows enough to trust it."""
    wanted = (*inputs.query.shape[:-1], output.shape[-1])
    if tuple(output.shape) != wanted:
        return Agreement(math.inf, math.inf, 0)
    error = ratio = 0.0
    count = 0
    for item, rows in blocks(subject, inputs):
        oracle = Oracle(subject, module, cut(subject, inputs, item, rows))
        found = item_of(subject, output.detach(), item)[..., rows, :].unsqueeze(0).cpu().double()
        if found.shape != oracle.output.shape:
            return Agreement(math.inf, math.inf, 0)
        off = (found - oracle.output).abs()
        budget = oracle.budget()
        worst = _ratio(off, budget)
        if worst > 1.0:  # few directions acquit; before a subject is accused, all is tried
            budget = oracle.budget(sure=True)
            worst = _ratio(off, budget)
        if count == 0:
            worst = max(worst, _scalar_ratio(subject, oracle, found, budget))
        error, ratio = max(error, _largest(off)), max(ratio, worst)
        count += len(rows)
    return Agreement(error, ratio, count)


def _scalar_ratio(subject: Subject, oracle: Oracle, found: Tensor, budget: Tensor) -> float:
    """The same for the reference in Python floats, on as many rows as it computes in no time.

    It is what says that this is the function that it is called: the one in float64 only says that
    it is computed as it is written.
    """
    inputs = oracle.inputs
    work = inputs.key.shape[-2] * inputs.query.shape[-1]
    if isinstance(subject.spec, MechanismSpec):
        work *= inputs.query.shape[-2]  # it computes all rows at once
    if not oracle.has_scalar or work > _SCALAR_WORK:
        return 0.0
    rows = oracle.rows(_SCALAR_WORK // inputs.query.shape[-1])
    off = (oracle.select(found, rows) - oracle.scalar(rows)).abs()
    return _ratio(off, oracle.select(budget.broadcast_to(found.shape), rows))


def _largest(values: Tensor) -> float:
    largest = float(values.max()) if values.numel() else 0.0
    return math.inf if math.isnan(largest) else largest


def _ratio(off: Tensor, budget: Tensor) -> float:
    return _largest(torch.where(off == 0, torch.zeros_like(off), off / budget))


def blocks(subject: Subject, inputs: Inputs) -> Iterator[tuple[int, list[int]]]:
    """Items, and of each the rows to look at, few enough for the reference to hold at once."""
    apart, q_len = _apart(subject, inputs.query), inputs.query.shape[-2]
    items, heads = math.prod(inputs.query.shape[:apart]), math.prod(inputs.query.shape[apart:-2])
    size = heads * inputs.key.shape[-2] * max(inputs.value.shape[-1], inputs.key.shape[-1])
    if isinstance(subject.spec, MechanismSpec):
        few = min(_MECHANISM_ITEMS, math.ceil(ROWS / q_len), _AT_ONCE // (q_len * size))
        most = max(1, min(items, few))
        for item in _spread(items, most):
            yield item, list(range(q_len))
        return
    chosen = _spread(items, min(items, 4) if q_len > 1 else min(items, ROWS))
    step = max(1, _AT_ONCE // size)
    for item in chosen:
        rows = _spread(q_len, min(q_len, math.ceil(ROWS / len(chosen))))
        for start in range(0, len(rows), step):
            yield item, rows[start : start + step]


def _spread(count: int, some: int) -> list[int]:
    """Some numbers below a count, evenly spread from the first to the last."""
    if some == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (some - 1)) for i in range(some)})


def _apart(subject: Subject, tensor: Tensor) -> int:
    """How many leading sizes tell items apart: all, or all but that of heads."""
    leading = tensor.dim() - 2
    return max(0, leading - 1) if subject.conventions.per_head else leading


def item_of(subject: Subject, tensor: Tensor, item: int) -> Tensor:
    """One item of ``(*lead, N, E)``: ``(N, E)``, or ``(H, N, E)`` where parameters go by head."""
    inner = tensor.shape[_apart(subject, tensor) :]
    return tensor.reshape(-1, *inner)[item]


def cut(subject: Subject, inputs: Inputs, item: int, rows: list[int]) -> Inputs:
    """One item and some rows of inputs, ``(1, rows, E)``, with one mask for all that hides keys.

    Where parameters go by head, an item has them all: ``(1, H, rows, E)``.
    """
    query = inputs.query
    lead, q_len, kv_len = tuple(query.shape[:-2]), query.shape[-2], inputs.key.shape[-2]
    outer, whole = lead[: _apart(subject, query)], (*lead, q_len, kv_len)

    def part(mask: Tensor) -> Tensor:
        at = torch.unravel_index(torch.tensor(item), outer) if outer else ()
        return mask.broadcast_to(whole)[tuple(int(i) for i in at)][..., rows, :]

    allowed: Tensor | None = None
    bias: Tensor | None = None
    parts = []
    if inputs.attn_mask is not None and inputs.attn_mask.dtype == torch.bool:
        parts.append(part(inputs.attn_mask))
    elif inputs.attn_mask is not None:
        bias = part(inputs.attn_mask)
    if inputs.valid_lens is not None:
        parts.append(part(valid_lens_mask(inputs.valid_lens, lead, q_len, kv_len)))
    if inputs.is_causal:
        parts.append(causal_mask(q_len, kv_len, query.device)[rows])
    for each in parts:
        allowed = each if allowed is None else allowed & each
    mask = allowed if bias is None else bias
    if bias is not None and allowed is not None:
        mask = torch.where(allowed, bias, -math.inf)
    slots = kv_item(subject, inputs, item)
    return Inputs(
        item_of(subject, query, item)[..., rows, :].unsqueeze(0),
        item_of(subject, inputs.key, slots).unsqueeze(0),
        item_of(subject, inputs.value, slots).unsqueeze(0),
        attn_mask=None if mask is None else mask.unsqueeze(0),
        enable_gqa=inputs.enable_gqa and subject.conventions.per_head,
    )


def kv_item(subject: Subject, inputs: Inputs, item: int) -> int:
    """Which item of key and value a query's item meets: grouped heads share one."""
    if not inputs.enable_gqa or subject.conventions.per_head:
        return item
    heads, shared = inputs.query.shape[-3], inputs.key.shape[-3]
    batch, head = divmod(item, heads)
    return batch * shared + head // (heads // shared)
