"""Reasons why an invariant does not apply to a subject, by the subject's declarations."""

from __future__ import annotations

from collections.abc import Callable

from attnbench.subject.subject import Subject

Reason = Callable[[Subject], str | None]
"""Returns the reason why an invariant does not apply, or ``None``."""


def any_of(*reasons: Reason) -> Reason:
    """Combine reasons; the first one that is not ``None`` counts."""

    def first(subject: Subject) -> str | None:
        return next((told for reason in reasons if (told := reason(subject)) is not None), None)

    return first


def accepts(name: str, otherwise: str = "") -> Reason:
    """A reason for subjects that do not accept a keyword argument."""
    reason = otherwise or f"does not accept {name}"
    return lambda subject: None if name in subject.accepts else reason


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


def adds_keys(subject: Subject) -> str | None:
    """The subject also attends to keys of its own."""
    own = subject.conventions.extra_keys
    return f"it adds {own} keys of its own (convention extra_keys)" if own else None


knows_positions_or_adds_keys = any_of(knows_positions, adds_keys)


def knows_heads(subject: Subject) -> str | None:
    """The subject has parameters per head."""
    return (
        "its parameters go by head (convention per_head)" if subject.conventions.per_head else None
    )
