"""The data of findings keep the promises of their pages.

That the scripts still print what the page says is tested where the libraries are installed, in
``plugins/attnbench-peers/tests``.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.registry.catalog import registry

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
GROUNDS = {"documentation", "other path", "arithmetic"}
NEEDED = {
    "defect": {"ground", "why", "script", "found"},
    "by design": {"source"},
    "unclear": {"why"},
}


@pytest.fixture(scope="module")
def table() -> Any:
    return SimpleNamespace(**runpy.run_path(str(FOLDER / "table.py")))


def test_every_verdict_says_what_it_rests_on(table: Any) -> None:
    findings, _ = table.read()
    for finding in findings:
        needed = {"library", "version", "subject", "property", "means"} | NEEDED[finding["verdict"]]
        assert needed <= {key for key, text in finding.items() if text}, finding
        assert finding.get("ground", "arithmetic") in GROUNDS, finding
        assert ("quote" in finding) == finding.get("address", "").startswith("https://"), finding
        assert finding.get("ground") != "documentation" or "quote" in finding, finding


def test_properties_are_invariants_or_in_words_and_accusations_are_explained(table: Any) -> None:
    findings, _ = table.read()
    scripts = {finding["script"] for finding in findings if finding["verdict"] == "defect"}
    known = {invariant.name for invariant in registry().invariants()}
    assert {f["property"] for f in findings if " " not in f["property"]} <= known
    for row in table.accusations():
        assert set(row["invariants"]) <= known
        assert row["verdict"] in NEEDED
        assert (row["cause"] in scripts) == (row["verdict"] == "defect"), row["cause"]


def test_every_script_has_one_finding_and_printed_two_results(table: Any) -> None:
    findings, outcomes = table.read()
    named = [finding["script"] for finding in findings if "script" in finding]
    assert sorted(named) == sorted(path.stem for path in (FOLDER / "scripts").glob("*.py"))
    for script in named:
        assert table.differ(**outcomes[script]), script


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "scripts").glob("*.py")), ids=lambda path: str(path.stem)
)
def test_a_script_is_at_most_15_lines_of_library_code(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= 15
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    own = imported - {"torch", "numpy", "jax", "onnx"} - set(sys.stdlib_module_names)
    assert len(own) <= 1, own
    assert "attnbench" not in imported
