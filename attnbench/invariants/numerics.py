"""Invariants on numbers: outputs agree with two references, within what rounding may cost.

The references are Python floats, one pair of query and key at a time, and a vectorised float64
run. They are compared with each other before either judges a subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.invariants.compare import agree_within, reject
from attnbench.oracles import Oracle
from attnbench.specs import Invariant
from attnbench.subject import Subject

__all__ = ["judge"]

_PAIRS = 64
"""About how many pairs of query and key are scored in Python floats, 10 to 100 µs each."""


def judge(oracle: Oracle, got: Tensor, what: str = "output") -> None:
    """Raise where an output is further from the float64 run than its budget allows."""
    _judge(got, oracle.output, lambda sure: oracle.budget(sure=sure), what, "the float64 run")


def _judge(
    got: Tensor, expected: Tensor, budget: Callable[[bool], Tensor], what: str, other: str
) -> None:
    try:
        agree_within(got, expected, budget(False), what, other)
    except InvariantViolation:
        agree_within(got, expected, budget(True), what, other)


def references_agree(oracle: Oracle) -> tuple[list[tuple[int, int]], Tensor]:
    """Some rows, and what the scalar reference gives for them, once both references agree on them.

    Raises:
        InvariantViolation: they do not; then neither can judge the subject.
    """
    rows = oracle.rows(_PAIRS)
    scalar = oracle.scalar(rows)
    wide = oracle.select(oracle.output, rows)
    budget = oracle.select(oracle.budget(units=64.0, eps=torch.finfo(torch.float64).eps), rows)
    name = oracle.subject.maker.name
    try:
        agree_within(wide, scalar, budget, "output (rows) in float64", "the scalar reference")
    except InvariantViolation as violation:
        raise InvariantViolation(
            f"the two references of {name} disagree, so neither can judge: its module run in "
            f"float64, and its reference=, which computes in Python floats. One of them does not "
            f"compute {oracle.subject.maker.formula or 'the formula'}.\n  {violation}",
            error=violation.error,
        ) from None
    return rows, scalar


def representable(oracle: Oracle, case: Case) -> None:
    """Reject a case in which a true score is too large for the dtype that scores may be in."""
    if oracle.subject.scoring is None or case.dtype != "float16":
        return
    largest = oracle.scores.masked_fill(~oracle.allowed, 0.0).abs().max()
    if float(largest) > torch.finfo(torch.float16).max:
        reject("a true score is larger than the dtype's largest number")


def _agrees_with_scalar(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    oracle = Oracle(subject, module, inputs)
    if not oracle.has_scalar:
        reject("the reference of a mechanism knows no floating masks")
    representable(oracle, case)
    rows, scalar = references_agree(oracle)
    got = oracle.select(subject.output(module, inputs), rows)
    budget: Callable[[bool], Tensor] = lambda sure: oracle.select(oracle.budget(sure=sure), rows)  # noqa: E731
    _judge(got, scalar, budget, "output (rows)", "the scalar reference")


def _agrees_with_float64(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    oracle = Oracle(subject, module, inputs)
    representable(oracle, case)
    judge(oracle, subject.output(module, inputs))


def _has_reference(subject: Subject) -> str | None:
    return None if subject.maker.reference else "declares no reference in Python floats"


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on numbers."""
    yield Invariant(
        name="agrees_with_scalar_reference",
        statement="The output is what the spec's reference computes in Python floats, within 4 "
        "times what one unit in the last place of inputs and parameters changes.",
        check=_agrees_with_scalar,
        applies=_has_reference,
    )
    yield Invariant(
        name="agrees_with_float64",
        statement="The output is that of a run in float64, within 4 times what one unit in the "
        "last place of inputs and parameters changes.",
        check=_agrees_with_float64,
    )
