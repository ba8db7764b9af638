"""``attnbench report``: one self-contained HTML page of recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnbench import AttnbenchError
from attnbench.commands import RESULTS, ask, check_writable, print_line, write_file
from attnbench.errors import RecordError
from attnbench.timing import recorded, run_files


def command(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders of records; by default results/attnbench."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML page to write.")] = Path(
        "report.html"
    ),
) -> int:
    """Write one HTML page of recorded runs, which needs neither network nor server.

    The outcomes of checks are read from NAME.checks.json beside NAME.jsonl, where 'attnbench run'
    writes them, and 'attnbench check --format json=FILE' can.
    """
    from attnbench_plugins.page.page import load_outcomes, render

    paths = run_files(sources or [RESULTS])
    check_writable(output, "--output")
    records = recorded(paths)
    if not records:
        raise RecordError(f"there are no records in {', '.join(map(str, paths))}.")
    files = [path.with_suffix(".checks.json") for path in paths]
    page = render(
        records,
        outcomes=[outcome for path in files if path.exists() for outcome in load_outcomes(path)],
        formulas=_formulas({record.subject.partition("(")[0] for record in records}),
        sources=[path.name for path in paths],
    )
    write_file(output, page.encode(), "--output")
    runs = "1 run" if len(paths) == 1 else f"{len(paths)} runs"
    print_line(f"Wrote {output}: {len(records)} records of {runs}.")
    return 0


def _formulas(bases: set[str]) -> dict[str, tuple[str, str]]:
    """Formula and source of installed subjects; subjects of recorded files are not imported."""
    try:
        rows = ask("subject_rows", targets=None)
    except AttnbenchError as error:
        print(f"warning: the page is without formulas: {error}", file=sys.stderr)
        return {}
    shown = [row for row in rows if row["formula"] and row["subject"] in bases]
    return {row["subject"]: (row["formula"], row["source"]) for row in shown}
