"""What commands print and write: lines, tables, JSON, progress, and files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError

_WIDTH = 120
"""Width of output in a pipe or a file, in columns."""

_NUMBER = re.compile(r"[-+]?\d|-$|inf|nan|yes$|no$")
"""How the cells of a column begin that is aligned to the right."""

_STYLES = {
    **dict.fromkeys(("ok", "passed", "found", "same", "faster"), "green"),
    **dict.fromkeys(("failed", "slower", "crashed", "timeout", "error"), "bold red"),
    **dict.fromkeys(("blocked", "inconclusive", "ambiguous", "unverified"), "yellow"),
    "heavy": "bold yellow",
    "skipped": "dim",
}


def _console(*, stderr: bool = False) -> Any:
    """A rich console as wide as the terminal, or as ``COLUMNS`` says, or as :data:`_WIDTH`."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if terminal or os.environ.get("COLUMNS", "").isdigit() else _WIDTH
    return Console(stderr=stderr, width=width, highlight=False)


def prepare_streams() -> None:
    """Open closed standard streams, and make them escape what their encoding lacks.

    Otherwise, the next file or pipe to be opened would take the place of the closed stream.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            file = open(os.devnull, "r+")  # noqa: SIM115 -- at the lowest free descriptor, its own
            os.set_inheritable(file.fileno(), True)  # children need it as well
            setattr(sys, name, file)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # UTF-8 lacks surrogates, as of file names
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str, status: str = "") -> None:
    """Print text, on a terminal in the colour of a status; the terminal wraps long lines.

    The text goes through ``sys.stdout``, which a progress bar redirects while it is shown.
    """
    text, style = printable(text), _STYLES.get(status)
    if style and (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        screen = _console()  # without colours if NO_COLOR is set
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
    if isinstance(content, list | tuple):
        return [_with_null(value) for value in content]
    return content


def print_parts(parts: Iterable[str | Sequence[Mapping[str, Any]]]) -> None:
    """Print lines and tables; see :func:`print_table`."""
    for part in parts:
        print_line(part) if isinstance(part, str) else print_table(part)


def print_table(
    rows: Sequence[Mapping[str, Any]], *, title: str | None = None, empty: str = "Nothing to show."
) -> None:
    """Print rows as a table, whose columns are the keys of the first row.

    Where a terminal is too narrow, each row is printed as lines instead.

    Args:
        rows: rows to print; floats are shown with three significant digits.
        title: title above the table.
        empty: text to print if there are no rows.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(empty)
        return
    screen = _console()
    widths = [max(len(cell_text(row.get(name))) for row in rows) + 3 for name in rows[0]]
    if screen.width < min(sum(widths), _WIDTH):  # the columns of a table would be too narrow
        for first, *rest in ([(n, cell_text(row.get(n))) for n in rows[0]] for row in rows):
            lines = [f"  {name}: {cell}" for name, cell in rest if cell not in ("", "-")]
            print("\n".join([first[1], *lines]))
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        cells = [cell_text(row.get(name)) for row in rows]
        numeric = all(map(_NUMBER.match, cells))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = [cell_text(row.get(name)) for name in rows[0]]
        table.add_row(*[Text(cell, style=_STYLES.get(cell, "")) for cell in cells])
    screen.print(table)


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar on standard error, only on a terminal.

    Yields:
        ``advance(steps, text)``: call it when steps are done, with a text about the current step.
    """
    if not sys.stderr.isatty():
        yield lambda steps, text: None
        return
    from rich.progress import Progress, TextColumn

    # lines printed meanwhile go above the bar, unless they go to a pipe
    is_terminal = sys.stdout.isatty()
    with Progress(
        *Progress.get_default_columns(),
        TextColumn("{task.fields[now]}"),
        console=_console(stderr=True),
        transient=True,
        redirect_stdout=is_terminal,
        redirect_stderr=is_terminal,
    ) as bar:
        task = bar.add_task(what, total=total, now="")
        yield lambda steps, text: bar.update(task, advance=steps, now=text)


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written, before the work for it begins.

    Raises:
        UsageError: it cannot.
    """
    is_new = not path.exists()
    with _writing(path, option):
        path.open("ab").close()
        if is_new:
            path.unlink()


def write_file(path: Path, content: bytes, option: str) -> None:
    """Write a file, and make its folder if there is none.

    Raises:
        UsageError: the file cannot be written.
    """
    with _writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextlib.contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot write this file: {error.strerror or error}."
        ) from None


def cell_text(value: object) -> str:
    """A cell of a table; floats have three significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else printable(str(value))


def printable(text: str) -> str:
    """A text with escapes in place of what a terminal acts on, but for the ends of lines."""
    if text.replace("\n", "").isprintable():
        return text
    spaced = "".join(" " if c.isspace() and c != "\n" else c for c in text)
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in spaced)
