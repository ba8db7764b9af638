"""Search with Hypothesis: one execution of its engine over a strategy, under a key of our own.

Failures are stored in Hypothesis's example database: ``.hypothesis/examples`` in the working
directory, unless a settings profile names another one, or none.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import SkipTest

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

__all__ = [
    "EFFORT",
    "Beginning",
    "CarefulDatabase",
    "Effort",
    "database",
    "drawn_count",
    "phases",
    "search",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How a run treats failures.

    Args:
        kept: database that stores them.
        shrink: whether to look for simpler ones.
    """

    kept: ExampleDatabase | None = None
    shrink: bool = True


_USUAL = Effort()

EFFORT: ContextVar[Effort] = ContextVar("attnbench_effort", default=_USUAL)
"""The effort of the current run, for checks that search on their own."""

_USUAL_EXAMPLES = 100
"""The default of ``max_examples`` in a settings profile."""


def search(
    strategy: SearchStrategy[T],
    fails: Callable[[T], bool],
    *,
    phases: Iterable[Phase],
    examples: int = 100,
    seed: str = "",
    kept: ExampleDatabase | None = None,
    key: str = "",
) -> T | None:
    """Find the simplest value for which ``fails`` is true; ``None`` if none was found.

    This is like :func:`hypothesis.find`, which cannot use both a seed and a database.

    Args:
        strategy: strategy of the values.
        fails: whether a value fails, deterministically; may reject a value.
        phases: Hypothesis's phases of this execution.
        examples: number of values to generate.
        seed: seed of the generated values and of the order of shrinking.
        kept: database that stores failures, which ``Phase.reuse`` tries again.
        key: key in the database.
    """
    quiet = _loaded().verbosity in (Verbosity.quiet, Verbosity.normal)
    chosen = settings(
        max_examples=examples,
        phases=tuple(phases),
        database=kept,
        derandomize=False,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet if quiet else _loaded().verbosity,
    )
    found: list[T] = []

    def holds(value: T) -> None:
        if fails(value):
            found[:] = [value]
            raise _FoundError

    number = random.Random(seed).getrandbits(64)  # noqa: S311 -- no secret
    execute: Any = chosen(seeded(number)(given(strategy)(holds)))  # @seed disables the database
    execute._hypothesis_internal_database_key = key.encode()  # as hypothesis.find does it
    try:
        execute()
    except _FoundError:
        return found[0]
    except Unsatisfiable:
        return None
    except SkipTest as error:
        if type(error) is not SkipTest:
            raise
    return None  # Hypothesis had nothing to run


class _FoundError(Exception):
    """A failing value was found."""


def _loaded() -> settings:
    """The loaded settings profile."""
    loaded = settings.default
    assert loaded is not None
    return loaded


def phases(*wanted: Phase) -> tuple[Phase, ...]:
    """The given phases that are also in the loaded settings profile."""
    return tuple(phase for phase in wanted if phase in _loaded().phases)


def drawn_count(usual: int) -> int:
    """The number of cases to draw: ``max_examples`` of the loaded settings profile, if set."""
    chosen = _loaded().max_examples
    return usual if chosen == _USUAL_EXAMPLES else chosen


def database() -> CarefulDatabase | None:
    """The example database of the loaded settings profile; it never raises."""
    given = _loaded().database
    if given is None:
        return None
    if settings.get_current_profile_name() == "default":  # whose folder was chosen at import
        given = DirectoryBasedExampleDatabase(Path(".hypothesis", "examples").absolute())
    return CarefulDatabase(given)


class CarefulDatabase(ExampleDatabase):
    """A database that survives errors of reading and writing, since it does not affect verdicts.

    Unreadable entries are left in place, while Hypothesis would delete them.

    Attributes:
        trouble: the first error in a line; ``""`` for none.
    """

    def __init__(self, inner: ExampleDatabase) -> None:
        super().__init__()
        self.inner = inner
        self.trouble = ""

    @property
    def _place(self) -> str:
        return str(getattr(self.inner, "path", "")) or f"the {type(self.inner).__name__}"

    def _tell(self, what: str) -> None:
        self.trouble = self.trouble or what

    def _entries(self, key: bytes) -> list[bytes]:
        try:
            return list(self.inner.fetch(key))
        except Exception as error:
            self._tell(
                f"{self._place} cannot be read ({_first_line(error)}): what failed before is not "
                "tried first"
            )
            return []

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The readable values stored under a key."""
        entries = self._entries(key)
        readable = [entry for entry in entries if _is_whole(entry)]
        if len(readable) < len(entries):
            self._tell(
                f"{self._place} holds failures that Hypothesis {hypothesis.__version__} cannot "
                "read, damaged or of another version: they are left there, and not tried first"
            )
        return readable

    def save(self, key: bytes, value: bytes) -> None:
        """Store a value."""
        told = "what was is not there"
        for _ in range(2):
            try:
                self.inner.save(key, value)
            except Exception as error:
                told = _first_line(error)
            if value in self._entries(key):  # a folder says nothing where it cannot be written
                return
            self.delete(key, value)  # what is damaged has its name
        self._tell(f"{self._place} cannot be written ({told}): what fails is not kept")

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete a value."""
        with contextlib.suppress(Exception):
            self.inner.delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Move a value to another key."""
        with contextlib.suppress(Exception):
            self.inner.move(src, dest, value)


def _is_whole(entry: bytes) -> bool:
    """Whether this version of Hypothesis would have written an entry as it is."""
    kept = hypothesis.database
    if not hasattr(kept, "choices_from_bytes"):  # older ones read any bytes
        return True
    try:
        choices = kept.choices_from_bytes(entry)
        return choices is not None and kept.choices_to_bytes(choices) == entry
    except Exception:  # what is no choice
        return False


def _first_line(error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class Beginning(ExampleDatabase):
    """A database with the last saved value, from which a search starts.

    It is returned for Hypothesis's secondary keys only, since Hypothesis does not shrink values
    under a primary key, which have been shrunk before.
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key, self.value = key.encode(), b""

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the last value."""
        return [self.value] if self.value and key != self.key else []

    def save(self, key: bytes, value: bytes) -> None:
        """Store the value of the primary key."""
        if key == self.key:
            self.value = value

    def delete(self, key: bytes, value: bytes) -> None:
        """Do nothing."""
