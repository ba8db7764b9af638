"""Properties that some subjects meet, or that take long; ``hints.toml`` says what breaks each."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from importlib import import_module
from importlib.resources import files

from attnbench import Invariant, hookimpl, testing

HINTS = tomllib.loads((files(__name__) / "hints.toml").read_text("utf-8"))
"""What usually breaks an invariant of this folder, by its name."""

invariant = functools.partial(testing.invariant, hints=HINTS)
layer_invariant = functools.partial(testing.layer_invariant, hints=HINTS)
"""The decorators of the toolkit, with these hints."""

MODULES = (
    "bias",
    "calls.autocast",
    "calls.compiling",
    "calls.copies",
    "calls.layouts",
    "calls.repetition",
    "derivatives.backward",
    "derivatives.second_derivatives",
    "dropout",
    "dropout_statistics",
    "layers.cache_operations",
    "layers.dependence",
    "layers.layer_gradients",
    "layers.layer_runs",
    "layers.module_state",
    "layers.padding",
    "layers.side_inputs",
    "layers.splits",
    "other_paths",
    "pooling",
    "rounding",
    "scaling",
    "shapes",
    "shifts",
    "symmetry",
)


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants that the modules hold."""
    for name in MODULES:
        module = import_module(f"{__name__}.{name}")
        yield from (held for held in vars(module).values() if isinstance(held, Invariant))
