"""What is said of a candidate can be passed on, and ranks it only if all of it was timed."""

from __future__ import annotations

import pytest
from attnbench_judge.decision import KEPT_UNTIMED, Judgement, RefusedError, Row, plain_text

from attnbench.commands import exit_code


@pytest.mark.parametrize(
    "said", ["x\ny: accepted", "\x1b[2Ky", "\x9b2K", "\ud800", "a\u2028b\r", "\0"]
)
def test_whatever_a_candidate_says_is_one_printable_line(said: str) -> None:
    for text in (plain_text(said), str(RefusedError("not_loaded", said))):
        assert text.isprintable(), ascii(text)
        text.encode()
    assert plain_text("é · 3") == "é · 3"


@pytest.mark.parametrize("status", KEPT_UNTIMED)
def test_a_candidate_that_keeps_a_case_from_being_timed_has_no_speed(status: str) -> None:
    rows = (
        Row("a", "ok", ratio=2.0),
        Row("b", "ok", ratio=0.5),
        Row("c", "too_short", ratio=9.0),
    )
    ranked = Judgement("x", "accepted", rows=rows, calls=10, calls_right=10)
    assert ranked.score["speed_against_fused"] == pytest.approx(1.0)
    assert ranked.score["cases_timed"] == pytest.approx(2 / 3)
    assert ranked.score["calls_right"] == 1.0
    assert not ranked.unranked
    refused = Judgement("x", "refused", RefusedError("too_fast", ""), rows=rows)
    assert refused.score["speed_against_fused"] is None
    assert exit_code(refused.statuses) == 1
    found = Judgement("x", "accepted", rows=(*rows, Row("d", status, reason="why")))
    assert found.score["speed_against_fused"] is None
    assert found.unranked == f"{status} at d: why"
    assert found.as_data()["unranked"] == found.unranked
