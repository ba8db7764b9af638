"""Notebooks written as scripts: their cells, running them, and the file that Jupyter reads."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_FOLDER = files("attnbench_classroom.notebooks")
_NEEDS = (
    "*Needs a Python kernel with attnbench, installed as its README says, and with ipykernel. "
    "Without it, what is below still shows the pictures and answers of an earlier run.*"
)


@dataclass(frozen=True)
class Cell:
    """A cell.

    Args:
        kind: ``"markdown"`` or ``"code"``.
        text: its content.
    """

    kind: str
    text: str


def names() -> dict[str, str]:
    """The notebooks, with the first line of each."""
    found = sorted(path.name for path in _FOLDER.iterdir() if path.name.endswith(".py"))
    stems = [name.removesuffix(".py") for name in found if not name.startswith("_")]
    return {name: cells(name)[0].text.partition("\n")[0].removeprefix("# ") for name in stems}


def cells(name: str) -> list[Cell]:
    """The cells of a notebook: its docstring first, then what stands below each ``# %%``."""
    source = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    title, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    found = [Cell("markdown", f"# {title.rstrip('.')}\n{rest}\n\n{_NEEDS}".strip())]
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        head, _, text = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = (line.removeprefix("#").removeprefix(" ") for line in text.strip().split("\n"))
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", text.strip()))
    return found


def questions(name: str) -> list[tuple[str, str]]:
    """Each question of a notebook, and what it stands for (a figure, an exercise)."""
    found = []
    for cell in cells(name):
        for heading, text in re.findall(r"^## (.+)\n((?:.|\n)*)", cell.text):
            kinds = re.findall(r"\(((?:figure|exercise)[^)]*)\)", f"{heading} {text}")
            found.append((re.sub(r" \((figure|exercise)[^)]*\)", "", heading), "; ".join(kinds)))
    return found


def run(name: str) -> list[tuple[str, list[str]]]:
    """Run the code cells of a notebook in one namespace, without a kernel.

    Returns:
        What each cell printed, and the figures that it drew, PNG files in base64.

    Raises:
        AssertionError: an answer does not hold.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": name}
    found = []
    for number, cell in enumerate(cells(name)):
        if cell.kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                code = compile(cell.text, f"{name}, cell {number}", "exec")
                exec(code, namespace)  # noqa: S102 -- the cells of this package
            pictures = [_png(plt, number) for number in plt.get_fignums()]
            found.append((printed.getvalue(), pictures))
            plt.close("all")
    return found


def _png(plt: Any, number: int) -> str:
    content = io.BytesIO()
    plt.figure(number).savefig(content, format="png", dpi=70)
    return base64.b64encode(content.getvalue()).decode()


def ipynb(name: str, results: Sequence[tuple[str, list[str]]]) -> dict[str, Any]:
    """A notebook as Jupyter's format 4.5 has it, with the pictures and answers of a run.

    Args:
        name: of the notebook.
        results: of its code cells, as :func:`run` gives them; empty for a notebook without any.
    """
    left, made = iter(results), []
    for number, cell in enumerate(cells(name)):
        more: dict[str, Any] = {}
        if cell.kind == "code":
            more = {"execution_count": None, "outputs": _outputs(*next(left, ("", [])))}
        known = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
        made.append(known | {"source": cell.text} | more)
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": python, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _outputs(printed: str, pictures: list[str]) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
    outputs += [
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}
        for picture in pictures
    ]
    return outputs
