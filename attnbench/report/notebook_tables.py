"""Tables in Python: text where they are printed, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.benchmark.frames import recorded
from attnbench.checking.plain_tables import html_lines, html_table, text_table
from attnbench.report import record_tables

Part = str | Sequence[Mapping[str, Any]]
"""Lines of text, or the rows of a table."""


@dataclass(frozen=True, repr=False)
class _Tables:
    data: Any
    parts: Sequence[Part]

    def __repr__(self) -> str:
        return "\n".join(part if isinstance(part, str) else text_table(part) for part in self.parts)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return "".join(
            html_lines(part.splitlines()) if isinstance(part, str) else html_table(part)
            for part in self.parts
        )


class Comparison(_Tables):
    """Whether B is faster or slower than A, as text and, in a notebook, as a table.

    Args:
        data: what ``attnbench compare --json`` prints: ``a``, ``b``, ``margin``, ``notes``, and
            ``rows`` with ``subject``, ``case``, ``verdict``, ``effect``, ``low`` and ``high``.
        parts: the lines and the tables that are shown.
    """


class Records(_Tables):
    """Recorded measurements, as text and, in a notebook, as ranked tables.

    Args:
        data: the ``records`` of ``attnbench bench --json``.
        parts: the lines and the tables that are shown.
    """

    @classmethod
    def read(cls, *sources: str | Path) -> Records:
        """Read files and folders of records, by default ``results/attnbench``.

        Raises:
            RecordError: there are no records, or they cannot be read.
        """
        records = recorded(map(Path, sources or ["results/attnbench"]))
        return cls(record_tables.as_rows(records), [*record_tables.parts(records)])
