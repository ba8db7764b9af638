"""Why an invariant says nothing of a subject, by what it declares."""

from __future__ import annotations

from collections.abc import Callable

from attnbench.subject.subject import Subject

__all__ = [
    "Reason",
    "adds_keys",
    "any_of",
    "has_no_gradients",
    "is_always_causal",
    "knows_heads",
    "knows_positions",
    "knows_positions_or_adds_keys",
]

Reason = Callable[[Subject], str | None]
"""Gives why it says nothing, or ``None``."""


def any_of(*reasons: Reason) -> Reason:
    """The first of some reasons that there is."""

    def first(subject: Subject) -> str | None:
        return next((told for reason in reasons if (told := reason(subject)) is not None), None)

    return first


def has_no_gradients(subject: Subject) -> str | None:
    """It is forward only."""
    return None if subject.conventions.gradients else "forward only (convention gradients)"


def is_always_causal(subject: Subject) -> str | None:
    """Where a key stands decides who sees it, whatever is asked."""
    always = subject.conventions.causal == "always"
    return "it is always causal, whatever mask there is (convention causal)" if always else None


def knows_positions(subject: Subject) -> str | None:
    """What it gives depends on where queries and keys stand."""
    if (always := is_always_causal(subject)) is not None:
        return always
    positions = subject.conventions.positions
    return None if positions == "none" else f"positions are {positions} (convention positions)"


def adds_keys(subject: Subject) -> str | None:
    """It attends to keys of its own too."""
    own = subject.conventions.extra_keys
    return f"it adds {own} keys of its own (convention extra_keys)" if own else None


knows_positions_or_adds_keys = any_of(knows_positions, adds_keys)


def knows_heads(subject: Subject) -> str | None:
    """Its parameters go by position among the leading sizes."""
    return (
        "its parameters go by head (convention per_head)" if subject.conventions.per_head else None
    )
