"""What the call of one failure says: its dtype, its masks, and whether gradients are wrong."""

from __future__ import annotations

from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure


def fails_narrow(failure: Failure) -> bool:
    """Whether it fails with half types only; cases shrink to wider types if they can."""
    return bool(failure.case and failure.smallest) and Case.from_id(failure.case or "").is_narrow


def is_open(failure: Failure) -> bool:
    """Whether the smallest call that fails has keys and no mask."""
    if failure.case is None or not failure.smallest:
        return False
    case = Case.from_id(failure.case)
    return case.mask == "none" and case.kv_len > 0


def is_forward(failure: tuple[str, Failure]) -> bool:
    """Whether an invariant's failure is of no gradient."""
    return "gradient" not in failure[0] + failure[1].quantity
