"""``attnbench notebook``: the questions of textbooks, each answered by one cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attnbench import UnknownNameError
from attnbench.commands import Task, call, check_writable, nearest, print_table, write_file
from attnbench_classroom import cells

_TIMEOUT_S = 600.0


def command(
    name: Annotated[
        str | None, typer.Argument(help="The notebook; without it, all are listed.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default NAME.ipynb."),
    ] = None,
) -> int:
    """Write a notebook, with its pictures and answers, for Jupyter.

    Each question of a textbook has one cell, which draws a picture and prints its answer with an
    interval. The cells are run once, so that the notebook shows pictures where no kernel runs.
    Without a name, the questions of all notebooks are listed.
    """
    known = cells.names()
    if name is None:
        rows = [
            {"notebook": one, "question": question}
            for one in known
            for question, _ in cells.questions(one)
        ]
        print_table(rows)
        return 0
    if name not in known:
        raise UnknownNameError(f"there is no notebook {name!r}. {nearest(name, known)}")
    path = output or Path(f"{name}.ipynb")
    check_writable(path, "--output")
    task = Task(name, "attnbench_classroom.cells:run", {"name": name}, timeout_s=_TIMEOUT_S)
    content = json.dumps(cells.ipynb(name, call(task)), indent=1, ensure_ascii=False)
    write_file(path, content.encode() + b"\n", "--output")
    typer.echo(f"Wrote {path}: {len(cells.questions(name))} questions.")
    return 0
