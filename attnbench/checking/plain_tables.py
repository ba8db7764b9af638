"""Tables of rows as HTML and as text, without a library."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence


def html_table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table whose columns are the keys of the first row; nothing without rows."""
    lines = [[f"<th>{html.escape(name)}</th>" for name in row] for row in rows[:1]]
    lines += [[f"<td>{html.escape(cell_text(cell))}</td>" for cell in row.values()] for row in rows]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div style="overflow-x: auto"><table>{body}</table></div>'


def text_table(rows: Sequence[Mapping[str, object]]) -> str:
    """The same as text."""
    lines = [[*row] for row in rows[:1]] + [[*map(cell_text, row.values())] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def cell_text(value: object) -> str:
    """A cell of a table; floats have three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else escaped(str(value))


def escaped(text: str) -> str:
    """A text with escapes in place of what a terminal acts on, but for the ends of lines."""
    if text.replace("\n", "").isprintable():
        return text
    spaced = "".join(" " if c.isspace() and c != "\n" else c for c in text)
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in spaced)


def html_lines(lines: Iterable[str]) -> str:
    """A paragraph of these lines."""
    return f"<p>{'<br/>'.join(map(html.escape, lines))}</p>"
