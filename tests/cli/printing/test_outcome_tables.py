"""Lines of outcomes on terminals of several widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.cli.printing.outcome_tables import Screen

OUTCOMES = (
    Outcome("soft", "keeps_the_contract", "passed", "20 drawn, 5 scheduled", 25, 0.12),
    Outcome("soft", "query_alone_equals_query_among_others", "passed", "3 of 8 masks", 8, 1.5),
    Outcome("soft", "left_padding_is_inert", "skipped", "it does not take a padding mask " * 3),
)
STATEMENTS = {outcome.invariant: "" for outcome in OUTCOMES}


def shown(capsys: pytest.CaptureFixture[str], *subjects: str) -> list[str]:
    screen = Screen(dict.fromkeys(subjects, len(OUTCOMES)), STATEMENTS)
    for outcome in OUTCOMES:
        screen.add(outcome)
    screen.end(CheckReport(OUTCOMES), 2.0)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [60, 80])
def test_outcomes_are_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys, "soft")
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    for outcome in OUTCOMES:
        assert f"{outcome.status} {outcome.invariant}" in text
        assert outcome.reason.strip() in text


def test_a_subject_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = shown(capsys, "soft", "multi_head(scoring=additive)/of_another")
    assert max(map(len, lines)) <= 60
    assert "ok soft 1.6 s 33 cases: 2 passed, 1 skipped" in " ".join(" ".join(lines).split())


def test_a_subject_that_was_skipped_is_not_ok(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen({"soft": 1, "multi_head": 1}, STATEMENTS)
    screen.add(Outcome("soft", "layouts_agree", "skipped", "not here"))
    screen.add(Outcome("multi_head", "layouts_agree", "passed", "1 drawn", 1, 0.1))
    first, second = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert first == "skipped soft 0.0 s 0 cases: 1 skipped"
    assert second == "ok multi_head 0.1 s 1 case: 1 passed"


def test_a_failure_that_was_announced_has_one_line_and_what_came_of_it_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = Outcome("soft", OUTCOMES[0].invariant, "failed", "it is wrong", 3, failure=Failure())
    screen = Screen({"soft": 2}, STATEMENTS)
    screen.announce(failed)
    assert capsys.readouterr().out.startswith("failed        keeps_the_contract")
    screen.announce(failed)
    screen.add(failed)
    screen.announce(failed)
    assert capsys.readouterr().out == ""
    screen.end(CheckReport((failed,)), 1.0)
    assert "FAILED soft: keeps_the_contract" in capsys.readouterr().out

    screen = Screen({"soft": 2}, STATEMENTS)
    screen.announce(failed)
    capsys.readouterr()
    screen.add(replace(failed, status="crashed", failure=None))
    assert capsys.readouterr().out.startswith("crashed       keeps_the_contract")


def test_an_outcome_in_a_pipe_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    *outcomes, _ = shown(capsys, "soft")
    assert [line.split()[1] for line in outcomes] == [o.invariant for o in OUTCOMES]
    assert outcomes[0].index("0.12 s") == outcomes[1].index("1.50 s")
