"""Properties that some subjects meet, or that take long; ``hints.toml`` says what breaks each."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from importlib.resources import files

from attnbench import Invariant, hookimpl, testing

HINTS = tomllib.loads((files(__name__) / "hints.toml").read_text("utf-8"))
"""What usually breaks an invariant of this folder, by its name."""

invariant = functools.partial(testing.invariant, hints=HINTS)
layer_invariant = functools.partial(testing.layer_invariant, hints=HINTS)
"""The decorators of the toolkit, with these hints."""


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants that the modules hold."""
    return testing.invariants_of(__name__)
