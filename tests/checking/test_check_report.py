"""Reports in words: when one is ok, and what of a failure is shown where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.cases.case import Case
from attnbench.checking.check_report import CheckReport, failure_text, finding_text
from attnbench.checking.outcomes import KEEPS_CONTRACT, Failure, Outcome

LONG = "weights.sum(-1)[0] = 1.0039, but should be 1 ± 0.00098: " + "each row " * 60
FOUND = Failure(case=Case().id)
BAD = Outcome("mine", "weights_sum_to_one", "failed", LONG, 40, failure=FOUND)


def report(*statuses: str) -> CheckReport:
    return CheckReport(tuple(Outcome("x", f"i{n}", s) for n, s in enumerate(statuses)))


@pytest.mark.parametrize(
    ("statuses", "ok"),
    [
        ((), False),
        (("skipped", "skipped"), False),
        (("passed", "skipped"), True),
        (("passed",), True),
        (("passed", "inconclusive"), False),
        (("passed", "failed"), False),
    ],
)
def test_a_report_is_ok_if_nothing_is_wrong_and_something_passed(
    statuses: tuple[str, ...], ok: bool
) -> None:
    assert report(*statuses).ok is ok


def test_the_repr_names_what_failed_within_what_pytest_shows() -> None:
    text = repr(CheckReport((Outcome("mine", "a", "passed"), BAD)))
    assert len(text) <= 240
    assert "1 passed, 1 failed; failed: weights_sum_to_one on mine: weights.sum(-1)[0]" in text
    assert "str(report)" in text


def test_a_script_for_another_failure_names_it() -> None:
    scripted = Failure(script="import torch\nassert 0")
    other = Outcome("mine", "layouts_agree", "failed", "off", failure=scripted)
    told = finding_text(
        [replace(BAD, failure=FOUND), replace(other, invariant="agrees_with_float64")]
    )
    assert "  reproduce agrees_with_float64, which failed too:\n    import torch" in told
    assert "  reproduce:\n    import torch" in finding_text([other, BAD])


def test_only_what_was_shrunk_is_called_the_smallest() -> None:
    assert "\n  counterexample: leading sizes" in failure_text(BAD)
    shrunk = replace(BAD, failure=replace(FOUND, smallest=True))
    assert "\n  smallest counterexample: leading sizes" in failure_text(shrunk)


def test_a_case_of_the_database_is_said_to_be_one() -> None:
    assert "example database" not in failure_text(BAD)
    replayed = replace(BAD, failure=replace(FOUND, replayed=True))
    assert ", from the example database" in failure_text(replayed)


def raising(name: str, line: str, raised: str = "TypeError") -> Outcome:
    found = Failure(raised=raised, source_line=line)
    return Outcome("mine", name, "failed", f"mine raised: {raised}: no", failure=found)


def test_where_calls_raise_the_report_leads_with_it_and_groups_the_rest() -> None:
    names = ("layouts_agree", "copies_agree", "vmap_equals_batch")
    bad = [raising(name, "mine.py:6") for name in names]
    bad += [raising("masks_broadcast", "mine.py:9", "ValueError"), BAD]
    lines = finding_text(bad).splitlines()
    assert lines[0] == "mine: it raises TypeError at mine.py:6 in 3 of the 5 checks that failed"
    assert lines[1] == "FAILED mine: layouts_agree"
    assert "  also raises TypeError at mine.py:6: copies_agree, vmap_equals_batch" in lines
    assert "  also raises ValueError at mine.py:9: masks_broadcast" in lines
    assert "  also failed: weights_sum_to_one" in lines


def test_one_call_that_raises_does_not_lead_before_what_is_wrong() -> None:
    bad = [raising("vmap_equals_batch", "mine.py:6"), BAD, replace(BAD, invariant="unit_variance")]
    assert finding_text(bad).startswith("FAILED mine: weights_sum_to_one\n")


def test_the_contract_leads_where_it_raises() -> None:
    bad = [raising("copies_agree", "mine.py:6"), raising(KEEPS_CONTRACT, "mine.py:6")]
    assert f"FAILED mine: {KEEPS_CONTRACT}\n" in finding_text(bad)


def test_what_the_property_itself_varies_is_told_apart_from_the_case() -> None:
    case = Case().tried(heads="own")
    varied = replace(BAD, failure=replace(FOUND, case=case.id))
    assert f"seed {case.seed} (the property varies heads=own)\n" in failure_text(varied)
