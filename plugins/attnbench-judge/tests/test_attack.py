"""What won an hour's attack on the judge wins no more; each kernel is judged in a process."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attnbench_judge.court import Court
from attnbench_judge.entry import Limits
from attnbench_judge.turns import TEXTBOOK

pytestmark = pytest.mark.slow

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


def test_the_textbook_form_takes_as_long_before_long_cases_as_after(court: Court) -> None:
    def calls(length: int) -> float:
        tensors = [torch.randn(1, 2, length, 32) for _ in range(3)]
        found = [court.honest().call(tensors, {}, callee=TEXTBOOK) for _ in range(20)]
        return statistics.median(answer.seconds for answer in found)

    before = calls(512)
    calls(1500)
    assert before < 1.4 * calls(512)


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_won_is_refused_or_gains_nothing(court: Court, name: str) -> None:
    found = court.judge(
        f"{HERE / 'attack.py'}:{name}", style="sdpa", invariants=["agrees_with_float64"], seed=1
    )
    assert (found.refusal or found.verdict) in OUTCOMES[name], found.sentence
    assert found.calls_whole < found.calls_right or not found.ok
    assert not found.sentence or found.sentence.isprintable()
