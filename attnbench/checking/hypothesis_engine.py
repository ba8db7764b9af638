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

T = TypeVar("T")

_USUAL_EXAMPLES = 100
"""The default of ``max_examples`` in a settings profile."""


def find_simplest(
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

    A database that cannot be read or written affects no verdict: nothing is tried first, or kept.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        self._database = database

    def again(
        self, key: str, read: Callable[[str], T | None], fails: Callable[[T], bool]
    ) -> T | None:
        """The first value stored under a key that fails again; those that hold are forgotten.

        Args:
            key: key of a subject and an invariant.
            read: makes a value of a text; ``None`` if it is of no concern now.
            fails: whether a value fails.
        """
        entries = list[bytes]()
        with contextlib.suppress(Exception):
            entries = sorted(self._database.fetch(key.encode()))
        for entry in entries:
            try:
                value = read(entry.decode("ascii"))
            except (ValueError, TypeError):  # another version wrote it
                continue
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
