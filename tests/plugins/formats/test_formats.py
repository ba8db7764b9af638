"""The formats of a report, held to the schemas of those who read them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from attnbench_plugins.formats import github, sarif

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.report.findings import Findings, Place

FAILED = Outcome(
    "mine",
    "weights_sum_to_one",
    "failed",
    "weights.sum(-1)[0] = 100%, but should be 1\nsecond line",
    failure=Failure(),
    command="attnbench check mine.py:SPEC",
)
OUTCOMES = (
    Outcome("mine", "keeps_the_contract", "passed"),
    FAILED,
    Outcome("mine", "unit_variance", "inconclusive", "too few"),
    Outcome("other", "keeps_the_contract", "crashed", "it died"),
)
STATEMENTS = {"weights_sum_to_one": "A row of weights sums to 1."}
PLACES = {"mine": Place("a folder/mine.py", 9)}
FINDINGS = Findings(CheckReport(OUTCOMES), STATEMENTS, PLACES)
SCHEMA = json.loads(Path(__file__).with_name("sarif-2.1.0.schema.json").read_text("utf-8"))


def test_sarif_is_valid_by_its_schema_and_has_a_rule_for_each_invariant_that_failed() -> None:
    log = json.loads(sarif.render(FINDINGS))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    (run,) = log["runs"]
    rules = {
        rule["id"]: rule["shortDescription"]["text"] for rule in run["tool"]["driver"]["rules"]
    }
    assert rules["weights_sum_to_one"] == STATEMENTS["weights_sum_to_one"]
    assert [result["ruleId"] for result in run["results"]] == [*rules]
    where = run["results"][0]["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "a%20folder/mine.py"
    assert where["region"]["startLine"] == 9
    assert "locations" not in run["results"][2]  # nobody knows where the code of 'other' stands


def test_annotations_are_one_a_subject_and_line_with_special_characters_escaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("of another step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    mine, other = github.render(FINDINGS).splitlines()
    assert mine.startswith("::error file=a folder/mine.py,line=9,title=mine%3A weights_sum_to_one")
    assert "100%25, but should be 1%0A" in mine
    assert other.startswith("::error title=other%3A keeps_the_contract::")
    text = summary.read_text("utf-8")
    assert text.startswith("of another step\n### ❌ attnbench: 1 passed, 1 failed, ")
    assert "#### `mine`: 1 passed, 1 failed, 1 inconclusive\n" in text
    assert "\n\nRun it: `attnbench check mine.py:SPEC`\n\n~~~text\n" in text  # above a long script
    assert "property: A row of weights sums to 1." in text


def test_a_summary_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/no/folder/x.md")
    with pytest.raises(Exception, match=r"GITHUB_STEP_SUMMARY=/no/folder/x\.md cannot be written"):
        github.render(FINDINGS)
