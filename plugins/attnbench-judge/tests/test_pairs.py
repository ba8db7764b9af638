"""What is wrong only where two things come together is refused, whatever is drawn."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from attnbench_judge.court import Court
from attnbench_judge.entry import Limits

pytestmark = pytest.mark.slow


HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    with Court(Limits(memory_gib=3.0), lengths=(256,)) as found:
        yield found


CODE = ast.parse((HERE / "pairs.py").read_text()).body
NAMES = [node.name for node in CODE if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


@pytest.mark.parametrize(
    "name", [*NAMES[:8], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[8:])]
)
def test_a_pair_is_met_in_every_judgement(court: Court, name: str) -> None:
    found = court.judge(
        f"{HERE / 'pairs.py'}:{name}", style="sdpa", invariants=["keeps_the_contract"], seed=1
    )
    assert found.refusal == "wrong", (found.verdict, found.sentence)
