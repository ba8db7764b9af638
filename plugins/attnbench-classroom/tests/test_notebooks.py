"""The notebooks: their cells run, answer with a picture and an interval, and make a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attnbench_classroom import cells

from tests.cli_runs import run

pytestmark = pytest.mark.slow

QUICK = ("additive_and_scaled_dot", "bilinear_and_vector_sum", "kernel_regression")
LONG = ("masked_softmax", "self_and_multi_head", "sequence_to_sequence", "variants")
TOPICS = {*QUICK, *LONG}
INTERVAL = re.compile(r" ± |95 % interval")


@pytest.mark.filterwarnings("default")  # what matplotlib says of Agg is not the cells' business
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(t, marks=pytest.mark.long) for t in LONG)])
def test_each_question_is_answered_by_one_cell_with_a_picture_and_an_interval(name: str) -> None:
    made = cells.cells(name)
    code = [i for i, cell in enumerate(made) if cell.kind == "code"]
    results = dict(zip(code, cells.run(name), strict=True))
    asked = [i for i, cell in enumerate(made) if cell.text.startswith("## ")]
    assert len(asked) == len(cells.questions(name)) >= 3
    for place in asked:
        printed, pictures = results[place + 1]
        assert INTERVAL.search(printed), made[place].text
        assert len(pictures) == 1, made[place].text
        assert "\nassert " in made[place + 1].text or "testing.assert" in made[place + 1].text


def test_a_written_notebook_shows_its_pictures_without_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "mask.ipynb"
    result = run("notebook", "masked_softmax", "-o", str(path))
    assert (result.code, result.out) == (0, f"Wrote {path}: 4 questions.\n")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert content["cells"][0]["source"].startswith("# Masked softmax")
    kinds = [
        output["output_type"]
        for cell in content["cells"]
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
    ]
    assert kinds == ["stream", "display_data"] * 4


def test_without_a_name_all_are_listed() -> None:
    result = run("notebook")
    assert result.code == 0
    assert all(name in result.out for name in TOPICS)
    assert "Why divide by the root of d?" in result.out


def test_a_wrong_name_is_one_line_with_the_nearest() -> None:
    result = run("notebook", "varaints")
    assert (result.code, result.out) == (2, "")
    assert "Did you mean 'variants'" in result.err
