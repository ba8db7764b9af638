"""Reports: when one is ok, and what of a failure is shown where."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.cases.case import Case
from attnbench.checking.outcomes import CheckReport, Outcome, failure_text, finding_text

LONG = "weights.sum(-1)[0] = 1.0039, but should be 1 ± 0.00098: " + "each row " * 60
BAD = Outcome("mine", "weights_sum_to_one", "failed", LONG, 40, counterexample=Case().id)


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


@pytest.mark.parametrize(("message", "whole"), [("report", False), ("str(report)", True)])
def test_an_assertion_in_pytest_says_what_failed(tmp_path: Path, message: str, whole: bool) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from attnbench.checking.outcomes import CheckReport, Outcome\n"
        f"report = CheckReport(({BAD!r},))\n"
        f"def test_mine():\n    assert report.ok, {message}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "weights_sum_to_one" in done.stdout
    assert "weights.sum(-1)[0] = 1.0039" in done.stdout
    assert ("case b" in done.stdout) is whole


def test_a_script_for_another_failure_names_it() -> None:
    other = Outcome("mine", "layouts_agree", "failed", "off", reproduce="import torch\nassert 0")
    told = finding_text([replace(BAD, diagnosis="wrong"), other])
    assert "  reproduce layouts_agree, which failed too:\n    import torch" in told
    assert "  reproduce:\n    import torch" in finding_text([other, BAD])


def test_only_what_was_shrunk_is_called_the_smallest() -> None:
    assert "\n  counterexample: leading sizes" in failure_text(BAD)
    shrunk = Outcome("x", "i", "failed", "off", counterexample=Case().id, shrunk=True)
    assert "\n  smallest counterexample: leading sizes" in failure_text(shrunk)
