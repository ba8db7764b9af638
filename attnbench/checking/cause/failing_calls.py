"""What the call of one failure says: its dtype, its masks, and whether gradients are wrong."""

from __future__ import annotations

from collections.abc import Mapping

from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure

_DECISIVE = {"nan_result", "extra_keys_share", "unwritten_read", "special_case"}
_DECISIVE |= {"layer_unwritten", "layer_state", "layer_slots"}


def fails_narrow(failure: Failure) -> bool:
    """Whether it fails with half types only; cases shrink to wider types if they can."""
    return bool(failure.case and failure.smallest) and Case.from_id(failure.case or "").is_narrow


def raises_narrow(failure: Failure | None) -> bool:
    """Whether a call raises with half types only."""
    return failure is not None and bool(failure.raised) and fails_narrow(failure)


def is_open(failure: Failure) -> bool:
    """Whether the smallest call that fails has keys and no mask."""
    if failure.case is None or not failure.smallest:
        return False
    case = Case.from_id(failure.case)
    return case.mask == "none" and case.kv_len > 0


def is_forward(failure: tuple[str, Failure]) -> bool:
    """Whether an invariant's failure is of no gradient."""
    return "gradient" not in failure[0] + failure[1].quantity


def is_decisive(failure: Failure) -> bool:
    """Whether what it names is true whatever else fails: NaN in both of two calls needs no mask."""
    without = failure.case is not None and Case.from_id(failure.case).mask == "none"
    return without and failure.named in _DECISIVE and not fails_narrow(failure)


def count_of_wide(failures: Mapping[str, Failure]) -> int:
    """How many of the failures are not of half types alone."""
    return sum(bool(entry.case) and not fails_narrow(entry) for entry in failures.values())
