"""What won an hour's attack on the judge wins no more; each kernel is judged in a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.judging.court import Court
from attnbench.judging.entry import Limits

HERE = Path(__file__).parent
OUTCOMES = {
    "narrow_places": {"wrong"},
    "raises_a_verdict": {"refused_when_timed"},
    "describes_itself": {"accepted"},
    "forges_its_description": {"not_loaded"},
}


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    with Court(Limits(memory_gib=3.0), lengths=(512,), budget_s=0.2) as found:
        yield found


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_won_is_refused_or_gains_nothing(court: Court, name: str) -> None:
    found = court.judge(
        f"{HERE / 'attack.py'}:{name}", style="sdpa", invariants=["agrees_with_float64"]
    )
    assert (found.refusal or found.verdict) in OUTCOMES[name], found.sentence
    assert not found.sentence or found.sentence.isprintable()
