"""The invariant that is checked first: a subject answers, as the contract says."""

from __future__ import annotations

import math

from attnbench.cases.case import Case
from attnbench.checking.answer_faults import fault_at
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.specs import KINDS
from attnbench.subject.subject import Subject

# where even a subject that is exempt from much has to answer
_MASKS = ("none", "boolean", "floating", "causal")
_REGIMES = ("normal", "tiny", "equal_keys", "zero_keys")


@invariant(kinds=KINDS, masks=_MASKS, regimes=_REGIMES)
def keeps_the_contract(subject: Subject, case: Case) -> None:
    """Every legal call gives an output (..., L, Ev) in the query's dtype and on its device, without
    NaN, the same each time, and changes no input.
    """
    fault = fault_at(subject, case)
    if fault is None:
        return
    got = math.nan if fault.kind == "nan" else None
    raise InvariantViolation(fault.text, got=got) from fault.error
