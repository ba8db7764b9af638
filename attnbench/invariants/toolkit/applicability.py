"""Reasons why an invariant does not apply to a subject, by the subject's declarations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attnbench.cases.case import Case
from attnbench.subject.subject import Subject

Reason = Callable[[Any], str | None]
"""Returns the reason why an invariant does not apply, or ``None``."""


def any_of(*reasons: Reason) -> Reason:
    """Combine reasons; the first one that is not ``None`` counts."""

    def first(subject: Subject) -> str | None:
        return next((text for reason in reasons if (text := reason(subject)) is not None), None)

    return first


def accepts(name: str, otherwise: str = "") -> Reason:
    """A reason for subjects that do not accept a keyword argument."""
    reason = otherwise or f"does not accept {name}"
    return lambda subject: None if name in subject.accepts else reason


def declares(law: str, so: str = "") -> Reason:
    """A reason for subjects that do not declare a law."""
    reason = f"does not declare {law}{so}"
    return lambda subject: None if law in subject.laws else reason


def supports(dtype: str) -> Reason:
    """A reason for subjects that do not support a dtype."""
    return lambda subject: None if dtype in subject.dtypes else f"{dtype} is not supported"


def not_exempt(*names: str) -> Reason:
    """A reason for subjects that are exempt from another invariant."""

    def reason(subject: Subject) -> str | None:
        exempt = [name for name in names if name in subject.exempt]
        return f"exempt from {exempt[0]}: {subject.exempt[exempt[0]]}" if exempt else None

    return reason


def resizes(subject: Subject, *names: str) -> str | None:
    """The reason why a size cannot be changed alone, or ``None`` if it can.

    Args:
        subject: a subject; some mechanisms tie ``q_len`` to ``kv_len``, or fix one of them.
        names: names of the sizes that an invariant changes.
    """
    for name in names:
        for size in (1, 2, 3, 5):
            case = Case(q_len=4, kv_len=4).replace(**{name: size})
            got = subject.legal(case)
            if (got.q_len, got.kv_len) != (case.q_len, case.kv_len):
                return (
                    f"{name} cannot be chosen alone: q_len={case.q_len}, kv_len={case.kv_len} "
                    f"is not legal, q_len={got.q_len}, kv_len={got.kv_len} is"
                )
    return None


def ties(*names: str) -> Reason:
    """A reason for subjects of which a size cannot be changed alone."""
    return lambda subject: resizes(subject, *names)


def has_no_gradients(subject: Subject) -> str | None:
    """The subject is forward only."""
    return None if subject.conventions.gradients else "forward only (convention gradients)"


def is_always_causal(subject: Subject) -> str | None:
    """The subject is causal in every call."""
    always = subject.conventions.causal == "always"
    return "it is always causal, whatever mask there is (convention causal)" if always else None


def scores_positions(subject: Subject) -> str | None:
    """The scores depend on the positions of queries and keys, so that equal keys score apart."""
    positions = subject.conventions.positions
    return None if positions == "none" else f"positions are {positions} (convention positions)"


knows_positions = any_of(is_always_causal, scores_positions)
"""The output depends on the positions of queries and keys."""


def hides_by_a_number(subject: Subject) -> str | None:
    """What is hidden gets a finite score."""
    low = subject.conventions.mask_value
    text = f"{low:g} stands for -inf: scores may lie below it (convention mask_value)"
    return None if math.isinf(low) else text


def has_scores(subject: Subject) -> str | None:
    """The subject shows no scores of its own."""
    if subject.kind == "kernel":
        return "a kernel's scores are those of its scoring function"
    return "a mechanism shows no scores" if subject.scoring is None else None


def adds_keys(subject: Subject) -> str | None:
    """The subject also attends to keys of its own."""
    own = subject.conventions.extra_keys
    return f"it adds {own} keys of its own (convention extra_keys)" if own else None


def knows_heads(subject: Subject) -> str | None:
    """The subject has parameters per head."""
    return (
        "its parameters go by head (convention per_head)" if subject.conventions.per_head else None
    )
