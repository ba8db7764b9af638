"""Properties that some subjects meet, or that take long; ``hints.toml`` says what breaks each."""

import functools
import tomllib
from importlib.resources import files

from attnbench import testing

HINTS = tomllib.loads((files(__name__) / "hints.toml").read_text("utf-8"))
"""What usually breaks an invariant of this folder, by its name."""

invariant = functools.partial(testing.invariant, hints=HINTS)
"""The decorator of the toolkit, with these hints."""
