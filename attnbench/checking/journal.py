"""A journal of outcomes, by which a long check can be interrupted and resumed.

The first line contains the arguments and versions; each further line is an outcome. A run that is
killed loses at most the outcome that it was writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench.checking.check_report import SCHEMA
from attnbench.checking.outcomes import Outcome
from attnbench.checking.works import key_of
from attnbench.errors import UsageError

_HEAD = "attnbench journal"
"""The key of the version in the first line."""


class Journal:
    """A file of outcomes.

    Args:
        path: path of the file, which need not exist.
        asked: everything that outcomes depend on besides subject, invariant and seed, as plain
            data.

    Raises:
        UsageError: the file cannot be written, is not a journal, or belongs to another check.
    """

    def __init__(self, path: Path, asked: Mapping[str, Any]) -> None:
        self.path = path
        self.outcomes: list[Outcome] = []
        head = json.dumps({_HEAD: SCHEMA, **asked}, sort_keys=True)
        try:
            with path.open("a+", encoding="utf-8") as file:
                file.seek(0)
                text = file.read()
            if text and "\n" not in text and head.startswith(text):  # it was being written
                self._cut(0)
                text = ""
            if not text:
                self._write(head)
        except OSError as error:
            raise UsageError(
                f"--resume {path}: cannot write this file: {error.strerror or error}. "
                "Name another place."
            ) from None
        except UnicodeDecodeError as error:
            raise UsageError(
                f"--resume {path}: it is no journal of a check ({error}); name another file."
            ) from None
        if text:
            self._read(text, json.loads(head))

    def _read(self, text: str, asked: dict[str, Any]) -> None:
        lines = text.split("\n")
        torn = lines.pop()
        try:
            first, *rest = (json.loads(line) for line in lines)
            version = first.get(_HEAD, SCHEMA)
            if version != SCHEMA:
                raise UsageError(
                    f"--resume {self.path}: it is a journal of version {version}, but this "
                    f"attnbench reads version {SCHEMA}; name another file."
                )
            differ = [name for name in asked if first.get(name) != asked[name]]
            outcomes = map(Outcome.from_data, rest)  # a later one replaces an earlier
            self.outcomes = [*{key_of(one): one for one in outcomes}.values()]
        except UsageError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UsageError(
                f"--resume {self.path}: it is no journal of a check ({error}); name another file."
            ) from None
        if differ:
            lines = [f"  {name}: {first.get(name)!r} there, {asked[name]!r} now" for name in differ]
            raise UsageError(
                f"--resume {self.path}: it is of another check:\n" + "\n".join(lines) + "\n"
                "Ask for the same, or name another file."
            )
        if torn:  # the run was killed while writing it
            self._cut(len(text.encode()) - len(torn.encode()))

    def _cut(self, size: int) -> None:
        with self.path.open("rb+") as file:
            file.truncate(size)

    def _write(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def add(self, outcome: Outcome) -> None:
        """Append an outcome.

        Raises:
            UsageError: there is no space left; earlier outcomes are kept.
        """
        try:
            self._write(outcome.to_json())
        except OSError as error:
            raise UsageError(
                f"--resume {self.path}: {error}; {len(self.outcomes)} outcomes are in it."
            ) from None
        self.outcomes.append(outcome)
