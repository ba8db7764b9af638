"""The invariant that is checked first: a subject answers, as the contract says."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.cases.case import Case
from attnbench.cases.spaces import cases
from attnbench.checking.answer_faults import fault_at
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.specs import KINDS, Invariant
from attnbench.subject.subject import Subject

# where even a subject that is exempt from much has to answer
_MASKS = ("none", "boolean", "floating", "causal")
_REGIMES = ("normal", "tiny", "equal_keys", "zero_keys")


def _keeps_the_contract(subject: Subject, case: Case) -> None:
    fault = fault_at(subject, case)
    if fault is not None:
        raise InvariantViolation(fault.text, cause=fault.cause) from fault.error


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariant that the others stand on."""
    yield Invariant(
        name="keeps_the_contract",
        statement="Every legal call gives an output (..., L, Ev) in the query's dtype and on its "
        "device, without NaN, the same each time, and changes no input.",
        check=_keeps_the_contract,
        kinds=KINDS,
        cases=lambda subject: cases(subject, masks=_MASKS, regimes=_REGIMES),
    )
