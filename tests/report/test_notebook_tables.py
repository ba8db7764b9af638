"""Records in Python: the tables of ``bench`` as text, and as HTML for a notebook."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import attnbench
from attnbench.benchmark.records import append
from attnbench.errors import RecordError
from tests.report.test_page import record


def test_recorded_runs_are_the_tables_of_bench_in_a_notebook(tmp_path: Path) -> None:
    rows = [record(time=1e-3, ratio=1.0), record("a<b>", time=None, status="failed", reason="no")]
    for row in rows:
        append(tmp_path / "run.jsonl", row)
    found = attnbench.Records.read(tmp_path)
    assert [row["subject"] for row in found.data] == ["scaled_dot", "a<b>"]
    tree = ElementTree.fromstring(f"<div>{found._repr_html_()}</div>")  # it is well-formed
    heads, *cells = ([cell.text for cell in line] for line in tree.iter("tr"))
    table = [dict(zip(heads, line, strict=True)) for line in cells]
    assert [(row["subject"], row["time_ms"]) for row in table] == [
        ("scaled_dot", "1"),
        ("a<b>", "-"),
    ]
    assert "failed: no" in "".join(tree.itertext())
    text = str(found).splitlines()
    assert text[0].startswith("L=S=64: ")
    assert any(line.split()[:2] == ["scaled_dot", "1"] for line in text)


def test_a_folder_without_records_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"there are no records at {tmp_path}"):
        attnbench.Records.read(tmp_path)
