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
from attnbench.checking.work import key_of
from attnbench.errors import UsageError

_HEAD = "attnbench journal"
"""The key of the version in the first line."""


class Journal:
    """A file of outcomes.

    Args:
        path: path of the file, which need not exist.
        request: everything that outcomes depend on besides subject, invariant and seed, as plain
            data.

    Raises:
        UsageError: the file cannot be written, is not a journal, or belongs to another check.
    """

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path = path
        self.outcomes: list[Outcome] = []
        head = json.dumps({_HEAD: SCHEMA, **request}, sort_keys=True)
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
            raise self._unreadable(error) from None
        if text:
            self._read(text, json.loads(head))

    def _read(self, text: str, expected: dict[str, Any]) -> None:
        lines = text.split("\n")
        fragment = lines.pop()
        try:
            request, *rows = (json.loads(line) for line in lines)
            version = request.get(_HEAD, SCHEMA)
            if version != SCHEMA:
                raise UsageError(
                    f"--resume {self.path}: it is a journal of version {version}, but this "
                    f"attnbench reads version {SCHEMA}; name another file."
                )
            differences = [name for name in expected if request.get(name) != expected[name]]
            outcomes = map(Outcome.from_data, rows)  # a later one replaces an earlier
            self.outcomes = [*{key_of(o): o for o in outcomes}.values()]
        except UsageError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise self._unreadable(error) from None
        if differences:
            lines = [f"  {n}: {request.get(n)!r} there, {expected[n]!r} now" for n in differences]
            raise UsageError(
                f"--resume {self.path}: it is of another check:\n" + "\n".join(lines) + "\n"
                "Ask for the same, or name another file."
            )
        if fragment:  # the run was killed while writing it
            self._cut(len(text.encode()) - len(fragment.encode()))

    def _unreadable(self, error: Exception) -> UsageError:
        what = f"it is no journal of a check ({error})"
        return UsageError(f"--resume {self.path}: {what}; name another file.")

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
