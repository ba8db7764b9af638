"""Invariants on dropout and the weights beside it; its averages are among the statistics."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnbench.cases import Case
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.invariants.baseline import Baseline
from attnbench.invariants.compare import agree_within, needs, same_gradients
from attnbench.invariants.deriving import has_gradients, leaves_of, ordinary
from attnbench.specs import Invariant
from attnbench.strategies import listed
from attnbench.subject import Subject

__all__ = ["takes_dropout"]


def takes_dropout(subject: Subject) -> str | None:
    """Why dropout says nothing of a subject; ``None`` if it takes ``dropout_p``."""
    return None if "dropout_p" in subject.accepts else "does not accept dropout_p"


def _no_dropout_in_evaluation(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    for share in (0.5, 0.9):
        got = base.run(base.inputs.replace(dropout_p=share))
        base.expect(
            got, f"in evaluation mode, with dropout_p={share}, output", "the call with dropout_p=0"
        )


def _weights_before_dropout(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    base.module.train()
    expected = needs(subject.weights(base.module, base.inputs))
    got = needs(subject.weights(base.module, base.inputs.replace(dropout_p=0.5)))
    tolerance = 16 * torch.finfo(got.dtype).eps
    what = "in training mode, with dropout_p=0.5, weights handed back"
    agree_within(got, expected, tolerance, what, "the call with dropout_p=0")


def _asked_for_weights(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    got, _ = subject.output_and_weights(base.module, base.inputs)
    base.expect(got, "with return_weights=True, output", "the call without")
    if has_gradients(subject, case):
        _same_gradients(base)
    if "dropout_p" not in subject.accepts:
        return
    base.module.train()
    plain = base.on(base.inputs).output
    dropped = base.inputs.replace(dropout_p=0.5)
    # each has fifteen weights or more: that all are kept in all calls does not happen by chance
    calls = [subject.output_and_weights(base.module, dropped)[0] for _ in range(8)]
    if all(torch.equal(output, plain) for output in calls):
        raise InvariantViolation(
            "in training mode with dropout_p=0.5 and return_weights=True, output = that without "
            f"dropout in each of {len(calls)} calls, but should differ: nothing is dropped"
        )


def _same_gradients(base: Baseline) -> None:
    """Hold the gradients of the output beside weights against those of the output alone."""
    inputs, leaves = leaves_of(base.module, base.inputs)
    same_gradients(
        base.subject.output_and_weights(base.module, inputs)[0],
        base.run(inputs),
        leaves,
        torch.randn(base.output.shape, generator=base.generator).to(base.output),
        "with return_weights=True",
        "the call without",
    )


def _gives_weights(subject: Subject) -> str | None:
    return None if "return_weights" in subject.accepts else "hands back no weights"


def _takes_dropout_and_gives_weights(subject: Subject) -> str | None:
    if "return_weights" not in subject.accepts:
        return "hands back no weights"
    return takes_dropout(subject)


_WEIGHT_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, mask="boolean"),
    Case((2,), 3, 5, mask="none", seed=1),
    Case((2,), 3, 5, mask="causal", seed=2),
    Case((1,), 40, 40, mask="floating", seed=3),
)


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on dropout."""
    yield Invariant(
        name="no_dropout_in_evaluation",
        statement="Dropout is active in training only.",
        check=_no_dropout_in_evaluation,
        cases=ordinary,
        applies=takes_dropout,
    )
    yield Invariant(
        name="weights_are_those_before_dropout",
        statement="The weights handed back are those before dropout.",
        check=_weights_before_dropout,
        cases=ordinary,
        applies=_takes_dropout_and_gives_weights,
    )
    yield Invariant(
        name="asking_for_weights_changes_nothing",
        statement="The output beside the weights is that without them, and has dropout as well.",
        check=_asked_for_weights,
        cases=lambda subject: listed(*map(subject.legal, _WEIGHT_CASES), enough=1),
        applies=_gives_weights,
    )
