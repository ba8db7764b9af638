"""Laws of mechanisms whose rows of weights are not a softmax over all keys."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, Subject
from attnbench.testing import MASKS, agree, agree_within, holds, invariant, needs, reject

_law = functools.partial(invariant, law=True)


def built_with_weights(subject: Subject, case: Case) -> tuple[Any, Inputs, Tensor]:
    """The module, the inputs and the float64 weights of a case."""
    module, inputs = subject.build(case)
    with torch.no_grad():
        return module, inputs, needs(subject.weights(module, inputs)).double()


def member(module: Any, name: str, meaning: str) -> Any:
    """An attribute of a module that a law reads; a module without it does not obey that law."""
    if not hasattr(module, name):
        raise InvariantViolation(
            f"the module, a {type(module).__name__}, has no attribute {name!r}, {meaning}, which "
            "this law reads: add it, or do not declare the law"
        )
    return getattr(module, name)


@_law(hint="the weights are not divided by their whole sum, or are negative")
def rows_sum_to_at_most_one(subject: Subject, case: Case) -> None:
    """Weights are at least 0, and a row of them sums to at most 1."""
    _, inputs, weights = built_with_weights(subject, case)
    slack = 4 * torch.finfo(inputs.query.dtype).eps * max(1.0, case.kv_len**0.5)
    total = weights.sum(-1)
    holds(weights >= 0, "weights", weights, "at least 0")
    holds(total <= 1 + slack, "weights.sum(-1)", total, "at most 1")


def _inside(module: Any, inputs: Inputs) -> Tensor:
    """``(..., L, S)``: whether a slot is in a query's window, computed from the window's edges."""
    allowed = inputs.allowed
    slots = torch.arange(allowed.shape[-1])
    edges = member(
        module, "edges", "a method (query, kv_len, seen) for the first and last slot of each window"
    )
    low, high = edges(inputs.query, len(slots), (allowed * (slots + 1)).amax(-1))
    inside: Tensor = (slots >= low.unsqueeze(-1)) & (slots <= high.unsqueeze(-1))
    return inside.expand_as(allowed)


@_law(hint="keys outside the window are hidden by a finite number, or its edge is off")
def only_window_has_weight(subject: Subject, case: Case) -> None:
    """A key outside a query's window has a weight of exactly 0."""
    module, inputs, weights = built_with_weights(subject, case)
    outside = ~_inside(module, inputs)
    holds(~outside | (weights == 0), "weights", weights, "exactly 0: it lies outside the window")


@_law(hint="the weights are normalised over other keys than those of the window")
def window_sums_to_one(subject: Subject, case: Case) -> None:
    """A row sums to 1 if its window has a key left, and to 0 otherwise."""
    module, inputs, weights = built_with_weights(subject, case)
    left = (_inside(module, inputs) & inputs.allowed).any(-1)
    slack = 4 * torch.finfo(inputs.query.dtype).eps * max(1.0, case.kv_len**0.5)
    agree_within(weights.sum(-1), left.double(), slack, "weights.sum(-1)", "its window's keys")


@_law(
    hint="the window is off by one, or a state is carried on",
    regimes=("normal",),
    layouts=("contiguous",),
    min_q_len=3,
    variants={"slot": ("first", "middle")},
)
def looks_back_at_most_its_window(subject: Subject, case: Case) -> None:
    """A state changes only its own output and those of the W states after it."""
    module: Any
    module, inputs = subject.build(case)
    slot = case.kv_len // 2 if case.variant("slot", "first") == "middle" else 0
    rows = torch.arange(case.q_len)
    blind = (rows < slot) | (
        rows > slot + member(module, "window", "how far a state looks back")
    )  # row `slot` has its own value
    if not bool(blind.any()):
        reject("every state sees that slot")
    moved = torch.arange(case.kv_len).unsqueeze(-1) == slot
    other = inputs.replace(
        key=torch.where(moved, inputs.key + 3, inputs.key),
        value=torch.where(moved, inputs.value - 3, inputs.value),
    )
    with torch.no_grad():
        before, after = (subject.output(module, given)[..., blind, :] for given in (inputs, other))
    what = f"with other values in slot {slot}, output of the states that it is hidden from"
    agree(after, before, what, "the same call without", units=64)


@_law(
    hint="hidden slots are multiplied by a weight of 0 instead of being left out",
    masks=("key_row", "key_padding", "padding", "causal_padding"),
    min_kv_len=2,
    layouts=("contiguous",),
    regimes=("normal",),
)
def padding_is_inert(subject: Subject, case: Case) -> None:
    """NaN or Inf in a slot that every query is kept from reaches no output."""
    module, inputs = subject.build(case)
    hidden = ~inputs.allowed.any(-2).unsqueeze(-1)
    if not bool(hidden.any()):
        reject("no slot is hidden from every query")
    junk = inputs.replace(
        key=inputs.key.masked_fill(hidden, math.nan),
        value=inputs.value.masked_fill(hidden, math.inf),
    )
    with torch.no_grad():
        clean, got = subject.output(module, inputs), subject.output(module, junk)
    what = "with NaN and Inf in slots that every query is kept from, output"
    agree(got, clean, what, "the same call without", units=64)


@_law(hint="the query or its place enters the weights", masks=tuple(MASKS), min_q_len=2)
def all_rows_are_equal(subject: Subject, case: Case) -> None:
    """Queries with the same mask get the same weights."""
    _, inputs, weights = built_with_weights(subject, case)
    allowed, bias = inputs.allowed, inputs.mask.bias
    alike = (allowed == allowed[..., :1, :]).all(-1)
    if bias is not None:
        alike = alike & (bias == bias[..., :1, :]).all(-1)
    same = (weights == weights[..., :1, :]).all(-1) | ~alike
    holds(same, "weights equal to those of query 0", same, "True: the masks are the same")
