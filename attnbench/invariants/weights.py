"""Invariants on weights: they are a distribution over the keys that are left."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnbench.cases import MASKS, Case
from attnbench.hookspecs import hookimpl
from attnbench.invariants.compare import agree_within, holds, needs
from attnbench.specs import Invariant
from attnbench.strategies import cases
from attnbench.subject import Subject

__all__ = ["has_weights"]


def has_weights(subject: Subject) -> str | None:
    """Why nothing can be said of a subject's weights; ``None`` if they can be had."""
    if subject.gives_weights:
        return None
    return "neither hands back weights nor declares pools_values"


def _sum_to_one(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    weights = needs(subject.weights(module, inputs))
    total = weights.double().sum(-1)
    alive = inputs.allowed.any(-1).to(total.dtype)
    # each weight is rounded to half a unit of its own size, and the sizes sum to 1
    tolerance = 4 * torch.finfo(weights.dtype).eps * max(1.0, case.kv_len**0.5)
    agree_within(total, alive, tolerance, "weights.sum(-1)", "a row with a key left")


def _masked_zero(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    hidden = ~inputs.allowed
    weights = needs(subject.weights(module, inputs))
    shown = weights.masked_fill(~hidden, 0.0)
    holds(shown == 0.0, "weights", weights, "exactly 0: the mask hides that key from that query")


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on weights."""
    masked = tuple(mask for mask in MASKS if mask not in ("none", "bias"))
    yield Invariant(
        name="weights_sum_to_one",
        statement="Each row of weights sums to 1, or to 0 if no key is left.",
        check=_sum_to_one,
        cases=lambda subject: cases(subject, masks=tuple(m for m in MASKS if m != "empty_row")),
        applies=has_weights,
    )
    yield Invariant(
        name="masked_weights_are_zero",
        statement="The weight of a key that a mask hides from a query is exactly 0.",
        check=_masked_zero,
        cases=lambda subject: cases(subject, masks=masked),
        applies=has_weights,
    )
