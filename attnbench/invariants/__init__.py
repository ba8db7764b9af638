"""The properties of a right attention; each is a plain function in one of these modules."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from attnbench.hookspecs import hookimpl
from attnbench.specs import Invariant

MODULES = (
    "calls.answers",
    "calls.execution",
    "derivatives.gradients",
    "masks.empty_rows",
    "masks.hidden_slots",
    "masks.mask_forms",
    "masks.masking",
    "masks.positions",
    "numerics",
    "weights",
)


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants that the modules hold."""
    for name in MODULES:
        module = import_module(f"{__name__}.{name}")
        yield from (held for held in vars(module).values() if isinstance(held, Invariant))
