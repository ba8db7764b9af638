"""What a notebook shows of a report."""

from __future__ import annotations

from xml.etree import ElementTree

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome

OUTCOMES = (
    Outcome("mine<1>", "keeps_the_contract", "passed"),
    Outcome("mine<1>", "weights_sum_to_one", "failed", "a < b & c"),
)


def test_a_report_is_a_row_a_subject_and_its_failures_escaped() -> None:
    text = CheckReport(OUTCOMES, notes=("a > note",))._repr_html_()
    tree = ElementTree.fromstring(f"<div>{text}</div>")  # it is well-formed
    rows = [[cell.text for cell in row] for row in tree.iter("tr")]
    assert rows == [["subject", "passed", "failed"], ["mine<1>", "1", "1"]]
    (told,) = [one.text or "" for one in tree.iter("pre")]
    assert "FAILED mine<1>: weights_sum_to_one" in told
    assert "a < b & c" in told
    assert [one.text for one in tree.findall("p")][-1] == "a > note"


def test_a_report_without_failures_has_no_details() -> None:
    assert "<details" not in CheckReport(OUTCOMES[:1])._repr_html_()


def test_a_finding_is_its_reason_and_the_way_to_see_it_again() -> None:
    outcome = Outcome("mine<1>", "weights_sum_to_one", "failed", "a < b", command="attnbench check")
    assert ElementTree.fromstring(outcome._repr_html_()).text == (
        "FAILED mine<1>: weights_sum_to_one\na < b\nattnbench check"
    )
