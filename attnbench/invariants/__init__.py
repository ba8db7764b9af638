"""The properties of a right attention; each is a plain function in one of these modules."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from attnbench.hookspecs import hookimpl
from attnbench.specs import Invariant

MODULES = (
    "bitwise",
    "calls.answers",
    "calls.autocast",
    "calls.compiling",
    "calls.copies",
    "calls.execution",
    "calls.layouts",
    "calls.repetition",
    "derivatives.backward",
    "derivatives.gradients",
    "derivatives.second_derivatives",
    "dropout",
    "dropout_statistics",
    "masks.bias",
    "masks.empty_rows",
    "masks.hidden_slots",
    "masks.mask_forms",
    "masks.masking",
    "masks.positions",
    "numerics",
    "pooling",
    "rounding",
    "scaling",
    "shapes",
    "shifts",
    "symmetry",
    "weights",
)


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants that the modules hold, by name or in a tuple ``INVARIANTS``."""
    for name in MODULES:
        module = import_module(f"{__name__}.{name}")
        yield from (held for held in vars(module).values() if isinstance(held, Invariant))
        yield from getattr(module, "INVARIANTS", ())
