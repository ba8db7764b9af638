"""The pages of findings follow from their data, and the data keep the pages' promises.

That the scripts still print what the page says is tested where the libraries are installed, in
``plugins/attnbench-peers/tests``.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from attnbench.registry.catalog import registry

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
GROUNDS = {"documentation", "other path", "arithmetic"}
NEEDED = {
    "defect": {"ground", "why", "script", "found"},
    "by design": {"source"},
    "unclear": {"why"},
}


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"findings_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table() -> Any:
    return loaded(FOLDER / "table.py")


@pytest.fixture(scope="module")
def made(table: Any) -> Any:
    found, _ = table.read()
    return loaded(FOLDER / "pages.py").pages(found, table.accusations(), table.report, "https://x/")


def test_every_finding_and_every_library_has_a_page(table: Any, made: Any) -> None:
    findings, _ = table.read()
    names = {finding["name"] for finding in findings}
    assert len(names) == len(findings)
    assert {f"{name}.md" for name in names} < set(made)
    assert f"library_{findings[0]['library']}.md" in made


def test_the_page_of_a_defect_has_its_script_its_cause_and_a_draft(made: Any) -> None:
    page = made["torch_sdpa_causal_negative_scale.md"]
    assert (FOLDER / "scripts" / "torch_sdpa_causal_negative_scale.py").read_text("utf-8") in page
    assert "- State: open" in page
    assert "## Draft of a report" in page
    assert "accuses `keras_dot_product`, `torch_sdpa`" in page
    assert (
        "(https://github.com/pytorch/pytorch/issues/118628)"
        in (made["torch_encoder_layer_float_mask.md"])
    )


def test_a_mended_defect_is_said_to_be_and_has_no_draft(table: Any) -> None:
    pages = loaded(FOLDER / "pages.py")
    finding = {**table.read()[0][0], "mended": "9.9"}
    made = pages.pages([finding], [], table.report, "")
    assert "State: mended in 9.9" in made[f"{finding['name']}.md"]
    assert "Draft of a report" not in made[f"{finding['name']}.md"]
    assert 'data-state="mended in 9.9"' in pages.overview([finding])


def test_the_feed_has_the_defects_the_newest_first(table: Any, made: Any) -> None:
    root = ElementTree.fromstring(made["feed.xml"])
    atom = "{http://www.w3.org/2005/Atom}"
    days = [str(entry.findtext(f"{atom}updated")) for entry in root.iter(f"{atom}entry")]
    defects = [finding for finding in table.read()[0] if finding["verdict"] == "defect"]
    assert len(days) == len(defects)
    assert days == sorted(days, reverse=True)
    link = next(root.iter(f"{atom}entry")).find(f"{atom}link")
    assert link is not None
    assert link.attrib["href"].startswith("https://x/findings/")


def test_a_draft_is_written_for_each_open_defect(
    table: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.main("reports", str(tmp_path / "drafts"))
    drafts = list((tmp_path / "drafts").glob("*.md"))
    assert capsys.readouterr().out.startswith(f"{len(drafts)} drafts in ")
    assert len(drafts) == sum(map(table.is_open, table.read()[0]))
    text = (tmp_path / "drafts" / "keras_mha_empty_row.md").read_text("utf-8")
    assert text.index("## Script") < text.index("## Result") < text.index("## Expected")


def test_every_verdict_says_what_it_rests_on(table: Any) -> None:
    findings, _ = table.read()
    for finding in findings:
        needed = {"library", "version", "subject", "property", "means"} | NEEDED[finding["verdict"]]
        assert needed <= {key for key, text in finding.items() if text}, finding
        assert finding.get("ground", "arithmetic") in GROUNDS, finding
        assert ("quote" in finding) == finding.get("address", "").startswith("https://"), finding
        assert finding.get("ground") != "documentation" or "quote" in finding, finding


def test_defects_are_counted_by_what_their_scripts_print(table: Any) -> None:
    findings, _ = table.read()
    defects = [finding for finding in findings if finding["verdict"] == "defect"]
    page = loaded(FOLDER / "pages.py").overview(findings)
    found = re.search(r"(\d+) give a\s+wrong.* (\d+) raise", page)
    assert found is not None
    wrong, errors = map(int, found.groups())
    assert f"found {len(defects)} defects in releases" in page
    assert wrong + errors == len(defects)
    assert page.count("<tr data-library=") == len(findings)


@pytest.mark.parametrize("page", ["docs/index.md", "README.md"])
def test_a_page_that_counts_the_defects_counts_them_right(table: Any, page: str) -> None:
    defects = [finding for finding in table.read()[0] if finding["verdict"] == "defect"]
    libraries = {finding["library"] for finding in defects}
    text = (FOLDER.parents[1] / page).read_text(encoding="utf-8")
    counts = re.findall(r"(\d+) defects in .*?(\d+) (?:public )?libraries", text)
    assert counts == [(str(len(defects)), str(len(libraries)))]


def test_a_property_is_an_invariant_or_is_said_in_words(table: Any) -> None:
    known = {invariant.name for invariant in registry().invariants()}
    named = {finding["property"] for finding in table.read()[0]}
    assert {name for name in named if " " not in name} <= known


def test_an_accusation_is_explained_by_a_defect_or_in_words(table: Any) -> None:
    scripts = {f["script"] for f in table.read()[0] if f["verdict"] == "defect"}
    known = {invariant.name for invariant in registry().invariants()}
    for row in table.accusations():
        assert set(row["invariants"]) <= known
        assert row["verdict"] in NEEDED
        assert (row["cause"] in scripts) == (row["verdict"] == "defect"), row["cause"]


def test_the_page_says_how_many_defects_the_suite_accused_by_itself(table: Any) -> None:
    page = " ".join((FOLDER / "index.md").read_text(encoding="utf-8").split())
    rows = table.accusations()
    causes = {row["cause"] for row in rows if row["verdict"] == "defect"}
    assert f"{len(causes)} of the defects are the cause of a row" in page
    counts = {v: sum(row["verdict"] == v for row in rows) for v in ("unclear", "by design")}
    told = (
        f"Of the {len(rows)} rows, {sum(counts.values())} are no defects: {counts['unclear']} are"
    )
    assert f"{told} unclear, and {counts['by design']} by design." in page
    findings, _ = table.read()
    threads = sum("thread" in f for f in findings if f["verdict"] == "defect")
    assert f"{threads} pages link a public thread" in page


def test_an_accusation_that_no_row_explains_is_listed(table: Any) -> None:
    def failed(subject: str, invariant: str) -> dict[str, str]:
        return {"subject": subject, "invariant": invariant, "status": "failed"}

    outcomes = [
        failed("torch_sdpa", "scale_multiplies_scores"),
        failed("torch_sdpa", "copies_agree"),
    ]
    assert table.untriaged(outcomes) == ["torch_sdpa: copies_agree"]


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


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ("[1.0, nan]", "[1.0, nan]", False),
        ("[1.0, nan]", "[1.0, 2.0]", True),
        ("[1.00000001]", "[1.0]", False),
        ("[1.001]", "[1.0]", True),
        ("-3e-05", "3e-05", True),
        ("index out of range", "[1.0]", True),
        ("[1.0, 2.0]", "[1.0]", True),
    ],
)
def test_two_results_differ_beyond_rounding(
    table: Any, got: str, want: str, expected: bool
) -> None:
    assert table.differ(got, want) is expected


def test_a_script_that_prints_one_result_is_an_error(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "half.py").write_text("print('got ', 1)\n", "utf-8")
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match="ended with 0"):
        table.run("half")
