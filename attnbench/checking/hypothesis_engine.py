"""Search with Hypothesis, and the failures stored in its example database.

Failures are stored in Hypothesis's example database: ``.hypothesis/examples`` in the working
directory, unless a settings profile names another one, or none. They are stored as text, under a
key of our own, so that any version of Hypothesis can read them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from unittest import SkipTest

from hypothesis import Phase, Verbosity, find, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import NoSuchExample, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from attnbench.errors import headline

T = TypeVar("T")

_USUAL_EXAMPLES = 100
"""The default of ``max_examples`` in a settings profile."""


def search(
    strategy: SearchStrategy[T],
    fails: Callable[[T], bool],
    *,
    phases: Iterable[Phase],
    examples: int = 100,
    seed: str = "",
) -> T | None:
    """Find the simplest value for which ``fails`` is true; ``None`` if none was found.

    Args:
        strategy: strategy of the values.
        fails: whether a value fails, deterministically; may reject a value.
        phases: Hypothesis's phases of this execution.
        examples: number of values to generate.
        seed: seed of the generated values and of the order of shrinking.
    """
    is_quiet = _loaded().verbosity in (Verbosity.quiet, Verbosity.normal)
    options = settings(
        max_examples=examples,
        phases=tuple(phases),
        database=None,
        derandomize=False,
        deadline=None,
        print_blob=False,
        verbosity=Verbosity.quiet if is_quiet else _loaded().verbosity,
    )
    generator = random.Random(seed)  # noqa: S311 -- no secret
    try:
        return find(strategy, fails, settings=options, random=generator)
    except (NoSuchExample, Unsatisfiable):
        return None
    except SkipTest as error:
        if type(error) is not SkipTest:
            raise
    return None  # Hypothesis had nothing to run


def _loaded() -> settings:
    """The loaded settings profile."""
    profile = settings.default
    assert profile is not None
    return profile


def phases(*candidates: Phase) -> tuple[Phase, ...]:
    """The given phases that are also in the loaded settings profile."""
    return tuple(phase for phase in candidates if phase in _loaded().phases)


def drawn_count(default: int) -> int:
    """The number of cases to draw: ``max_examples`` of the loaded settings profile, if set."""
    count = _loaded().max_examples
    return default if count == _USUAL_EXAMPLES else count


def failures() -> Failures | None:
    """The failures in the example database of the loaded settings profile; it never raises."""
    database = _loaded().database
    if database is None:
        return None
    if settings.get_current_profile_name() == "default":  # whose folder was chosen at import
        database = DirectoryBasedExampleDatabase(Path(".hypothesis", "examples").absolute())
    return Failures(database)


class Failures:
    """Stored failures, each a text under the key of a subject and an invariant.

    Errors of reading and writing do not affect verdicts, so they raise nothing and are noted.

    Attributes:
        trouble: the first error, on one line; ``""`` for none.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        self._database = database
        self.trouble = ""

    def again(
        self, key: str, read: Callable[[str], T | None], fails: Callable[[T], bool]
    ) -> T | None:
        """The first value stored under a key that fails again; those that hold are forgotten.

        Args:
            key: key of a subject and an invariant.
            read: makes a value of a text; ``None`` if it is of no concern now.
            fails: whether a value fails.
        """
        readable = []
        for entry in sorted(self._entries(key)):
            try:
                readable.append((entry, read(entry.decode("ascii"))))
            except (ValueError, TypeError):
                self._tell(
                    "holds failures that cannot be read, which are left there, and not tried first"
                )
        for entry, value in readable:
            if value is not None and fails(value):
                return value
            if value is not None:
                with contextlib.suppress(Exception):
                    self._database.delete(key.encode(), entry)
        return None

    def save(self, key: str, text: str) -> None:
        """Store a text."""
        with contextlib.suppress(Exception):
            self._database.save(key.encode(), text.encode())
        if text.encode() not in self._entries(key):  # an unwritable folder raises nothing
            self._tell("cannot be written: what fails is not kept")

    def _entries(self, key: str) -> list[bytes]:
        try:
            return list(self._database.fetch(key.encode()))
        except Exception as error:
            self._tell(f"cannot be read ({headline(error)}): what failed before is not tried first")
            return []

    def _tell(self, trouble: str) -> None:
        place = getattr(self._database, "path", "") or f"the {type(self._database).__name__}"
        self.trouble = self.trouble or f"{place} {trouble}"
