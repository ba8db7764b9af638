"""Output of commands: tables on a terminal or in a file, JSON, and progress."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attnbench.checking.plain_tables import cell_text, escaped

_WIDTH = 120
"""Width of output in a pipe or a file, in columns."""

_MIN_WIDTH = 12
"""Least width of a column whose cells have at least as many characters."""

_FIRST_WIDTH = 30
"""The same for the first column, which names the row."""

_SHORT_S = 2.0
"""Seconds of work without a progress bar."""

_NUMBER = re.compile(r"-|[-+]?(\d[\d.,e+-]*( ± [\d.]+)?|inf|nan) ?%?|yes|no")
"""Cells of columns that are aligned to the right."""

_STYLES = {
    "ok": "green",
    "passed": "green",
    "found": "green",
    "same": "green",
    "faster": "green",
    "failed": "bold red",
    "slower": "bold red",
    "crashed": "bold red",
    "timeout": "bold red",
    "error": "bold red",
    "blocked": "yellow",
    "inconclusive": "yellow",
    "heavy": "bold yellow",
    "ambiguous": "yellow",
    "unverified": "yellow",
    "skipped": "dim",
}


def console(*, stderr: bool = False) -> Any:
    """A rich console as wide as the terminal, or as ``COLUMNS`` says, or as :data:`_WIDTH`."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal or os.environ.get("COLUMNS", "").isdigit() else _WIDTH
    return Console(stderr=stderr, width=width, highlight=False)


def prepare_streams() -> None:
    """Open closed standard streams, and make them escape what their encoding lacks.

    Otherwise, the next file or pipe to be opened would take the place of the closed stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # open() takes the lowest free descriptor, this one; children need it as well
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # UTF-8 lacks surrogates, as of file names
            stream.reconfigure(errors="backslashreplace")


def screen_width() -> int | None:
    """Columns of standard output, a terminal's or ``COLUMNS``; ``None`` for a pipe or a file."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return int(console().width)
    return None


def print_line(text: str, status: str = "") -> None:
    """Print text, on a terminal in the colour of a status; the terminal wraps long lines.

    The text goes through ``sys.stdout``, which a progress bar redirects while it is shown.
    """
    text, style = escaped(text), _STYLES.get(status)
    if style and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        screen = console()  # without colours if NO_COLOR is set
        with screen.capture() as capture:
            screen.print(text, style=style, markup=False, soft_wrap=True, end="")
        text = capture.get()
    print(text, flush=True)


def print_json(content: object) -> None:
    """Print JSON, and nothing else on standard output; NaN and infinities become null.

    It is escaped to ASCII where the encoding is narrow, or a terminal would act on a character.
    """
    plain = partial(json.dumps, _with_null(content), indent=2, default=str)
    text = plain(ensure_ascii=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_wide = encoding.lower().startswith("utf")
    print(text if is_wide and text.replace("\n", "").isprintable() else plain())


def _with_null(content: Any) -> Any:
    """Replace NaN and infinities, which JSON does not allow, by ``None``."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _with_null(value) for key, value in content.items()}
    return (
        [_with_null(value) for value in content] if isinstance(content, list | tuple) else content
    )


def print_parts(parts: Iterable[str | Sequence[Mapping[str, Any]]]) -> None:
    """Print lines and tables; see :func:`print_table`."""
    for part in parts:
        if isinstance(part, str):
            print_line(part)
        else:
            print_table(part)


def print_table(
    rows: Sequence[Mapping[str, Any]],
    *,
    hide: Sequence[str] = (),
    title: str | None = None,
    empty: str = "Nothing to show.",
) -> None:
    """Print rows as a table, whose columns are the keys of the first row.

    If the columns would be too narrow to read, each row is printed as a block of lines instead.

    Args:
        rows: rows to print; floats are shown with three significant digits.
        hide: columns to leave out.
        title: title above the table.
        empty: text to print if there are no rows.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(empty)
        return
    columns = [name for name in rows[0] if name not in hide]
    screen = console()
    widths = [_min_width(rows, name, columns[0]) for name in columns]
    if sum(widths) + 3 * len(columns) > screen.width:
        _print_blocks(rows, columns, screen.width, title)
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        numeric = all(_NUMBER.fullmatch(cell_text(row.get(name))) for row in rows)
        justify: Any = "right" if numeric else "left"
        is_short = _cell_width(rows, name) <= width
        table.add_column(name, justify=justify, overflow="fold", no_wrap=is_short)
    for row in rows:
        cells = [cell_text(row.get(name)) for name in columns]
        table.add_row(*[Text(cell, style=_STYLES.get(cell, "")) for cell in cells])
    screen.print(table)


def _min_width(rows: Sequence[Mapping[str, Any]], name: str, first: str) -> int:
    """The least width at which a column shows its name, and short cells in full."""
    limit = _FIRST_WIDTH if name == first else _MIN_WIDTH
    return max(len(name), min(limit, _cell_width(rows, name)))


def _cell_width(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return max(len(cell_text(row.get(name))) for row in rows)


def _print_blocks(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int, title: str | None
) -> None:
    head, *rest = columns
    names = max(map(len, rest), default=0)
    for text in [title] if title else []:
        print(textwrap.fill(text, max(width, 20)))
    for row in rows:
        print(f"{head} {cell_text(row.get(head))}".strip())
        for name in rest:
            cell = cell_text(row.get(name))
            if cell and cell != "-":
                indents = f"  {name:{names}}  ", " " * (names + 4)
                lines = textwrap.wrap(
                    cell,
                    max(width, 20 + names),
                    initial_indent=indents[0],
                    subsequent_indent=indents[1],
                    break_on_hyphens=False,
                )
                print("\n".join(lines))
    print()


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar on standard error: only on a terminal, and not for short work.

    Yields:
        ``advance(steps, text)``: call it when steps are done, with a text about the current step.
    """
    if not sys.stderr.isatty():
        yield lambda steps, text: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    # lines printed meanwhile go above the bar, unless they go to a pipe
    is_terminal = sys.stdout.isatty()
    bar = Progress(
        *columns,
        console=console(stderr=True),
        transient=True,
        redirect_stdout=is_terminal,
        redirect_stderr=is_terminal,
    )
    task = bar.add_task(what, total=total, now="")
    start_s, shown = time.monotonic() + _SHORT_S, False

    def advance(steps: int, text: str) -> None:
        nonlocal shown
        bar.update(task, advance=steps, now=text)
        if not shown and time.monotonic() > start_s:
            shown = True
            bar.start()

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
