"""What a check prints: a line for each subject, and for each outcome if it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.checking.check_report import CheckReport
from attnbench.checking.gaps import Gap
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.cli.outcome_lines import Screen, holding_text, next_step

OUTCOMES = (
    Outcome("soft", "keeps_the_contract", "passed", "20 drawn, 5 scheduled", 25, 0.12),
    Outcome("soft", "query_alone_equals_query_among_others", "passed", "3 of 8 masks", 8, 1.5),
    Outcome("soft", "left_padding_is_inert", "skipped", "it does not take a padding mask"),
)
FAILED = replace(OUTCOMES[0], status="failed", reason="it is wrong", failure=Failure())
STATEMENTS = {outcome.invariant: "" for outcome in OUTCOMES}


def shown(
    capsys: pytest.CaptureFixture[str], *outcomes: Outcome, verbose: bool = False
) -> list[str]:
    screen = Screen({"soft": len(OUTCOMES)}, STATEMENTS, verbose=verbose)
    for outcome in outcomes:
        screen.add(outcome)
    screen.end(CheckReport(outcomes), 2.0, "do this")
    return capsys.readouterr().out.splitlines()


def test_a_subject_that_passes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, *OUTCOMES) == [
        "soft  2 properties hold, 1 does not apply",
        "2 passed, 1 skipped in 2 s",
        "Next: do this",
    ]


def test_a_subject_that_fails_is_its_report_and_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, FAILED, *OUTCOMES[1:])
    assert lines[:4] == [
        "failed        soft: keeps_the_contract",  # as soon as it is found
        "  it is wrong",
        "",
        "FAILED soft: keeps_the_contract",
    ]
    assert lines[-4:-2] == ["", "soft  1 property holds, 1 fails, 1 does not apply"]


def test_an_outcome_that_is_taken_back_after_its_subject_was_shown_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Screen({"soft": 1}, STATEMENTS)
    screen.add(OUTCOMES[0])
    capsys.readouterr()
    screen.add(replace(OUTCOMES[0], status="crashed", reason="the canary did not fail"))
    told = "soft: keeps_the_contract: crashed: the canary did not fail\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (
            [replace(OUTCOMES[0], status="skipped", reason="exempt: so")],
            "no property holds, 1 is exempt",
        ),
        ([replace(OUTCOMES[0], status="crashed")] * 2, "no property holds, 2 crashed"),
    ],
)
def test_what_holds_is_said_in_words(outcomes: list[Outcome], text: str) -> None:
    assert holding_text(outcomes) == text


def test_the_next_step_follows_from_the_outcomes() -> None:
    command = "attnbench check soft --invariant keeps_the_contract"
    failing = CheckReport((OUTCOMES[1], replace(FAILED, command=command)), "quick")
    assert next_step(failing, []) == command
    assert next_step(CheckReport(OUTCOMES[2:], "quick"), ["soft"]).startswith(
        "attnbench check soft -v"
    )
    passing = CheckReport(OUTCOMES, "quick")
    assert next_step(passing, ["soft"]).startswith("attnbench check soft --profile default ")
    assert next_step(passing, []).startswith("attnbench check --profile default ")
    assert next_step(replace(passing, profile="default"), []).startswith("attnbench bench ")


@pytest.mark.parametrize(("questions", "count"), [(0, 0), (3, 3)])
def test_a_few_lines_ask_about_what_was_not_looked_at(
    capsys: pytest.CaptureFixture[str], questions: int, count: int
) -> None:
    gaps = tuple(Gap("soft", 2, f"spam {number} was not tried", "") for number in range(5))
    screen = Screen({"soft": 1}, STATEMENTS, questions=questions)
    screen.add(OUTCOMES[0])
    screen.end(CheckReport(OUTCOMES[:1], coverage=gaps), 2.0)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("Not looked at, soft: spam") for line in lines) == count
