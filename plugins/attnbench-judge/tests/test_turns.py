"""Intervals of ratios, and statuses of refusals."""

import itertools
import random
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from attnbench_judge.court import Court
from attnbench_judge.decision import Judgement
from attnbench_judge.fresh_calls import Caller
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.entry import Answer, Limits
from attnbench_judge.turns import EMPTY, FUSED, PRODUCT, interval, timed, total_ratio
from torch.nn.functional import scaled_dot_product_attention as fused

from attnbench import Case
from attnbench.errors import AttnbenchError, UsageError

pytestmark = pytest.mark.slow


def test_interval_holds_the_median_as_often_as_it_says() -> None:
    chance = random.Random(0)
    held = 0
    for _ in range(400):
        logs = [chance.gauss(0.0, 1.0) for _ in range(25)]
        low, _, high = interval(logs, statistics.median, chance)
        held += low <= 0.0 <= high
    assert 0.92 <= held / 400 <= 0.99


def test_rare_calls_that_take_long_are_in_the_ratio_of_totals() -> None:
    chance = random.Random(0)
    steady = [(2.0 + chance.random() / 50, 2.0) for _ in range(40)]
    spiky = [(10.0 if place % 3 == 0 else 2.0, 2.0) for place in range(40)]
    low, ratio, high = interval(steady, total_ratio, chance)
    assert low < ratio < high < 0.0
    assert low > -0.1
    assert interval(spiky, total_ratio, chance)[2] < -0.5


@pytest.mark.parametrize(
    ("target", "told"),
    [("additive", "not the address of a function"), ("no/such.py:f", "there is no file")],
)
def test_wrong_address_is_told(target: str, told: str) -> None:
    with Court(Limits()) as court, pytest.raises(UsageError, match=told):
        court.judge(target)


def test_a_file_in_place_of_a_module_of_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "statistics.py"
    path.write_text("def statistics(query, key, value):\n    return value\n")
    module = ModuleType("statistics")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "statistics", module)
    with Court(Limits()) as court, pytest.raises(UsageError, match="or with python -P"):
        court.judge(f"{path}:statistics")


def test_unknown_invariant_is_told() -> None:
    with Court(Limits()) as court, pytest.raises(AttnbenchError, match="no invariant is called"):
        court.judge("torch.nn.functional:scaled_dot_product_attention", invariants=["nonsense"])


class Recorder:
    """A process that tells which callees were called, in order."""

    def __init__(self, order: list[tuple[str, int]], name: str) -> None:
        self.order, self.name = order, name

    def call(self, tensors: list[torch.Tensor], keywords: object, callee: int = 0) -> Answer:
        """The right answer, after a while."""
        self.order.append((self.name, callee))
        output = fused(*tensors[:3]) if callee != PRODUCT else tensors[0]
        return Answer(output, 0.01 + random.random() / 1000, 0.0)


def test_what_a_candidate_leaves_behind_meets_no_time_unless_its_own_counts() -> None:
    order: list[tuple[str, int]] = []
    cell, honest = Recorder(order, "candidate"), Recorder(order, "honest")
    stream = Stream(Case((1, 2), 32, 32, 8, 8, 8), {}, "sdpa", Secret(0))
    caller = Caller(cell, lambda: cell, {}, random.Random(0), Judgement("x"))  # type: ignore[return-value]  # no process
    row = timed(caller, honest, stream, budget_s=0.0, chance=random.Random(0))
    assert row.blocks == 12
    known = [("honest", FUSED), ("honest", EMPTY)]
    start = 6  # the first calls are not timed
    inside = order.index(("candidate", 1))
    for before, one in itertools.pairwise(order[start:]):
        if one in known[1:]:
            assert before == ("honest", FUSED)
    assert all(one == ("candidate", 0) or one in known for one in order[start:inside])
    last = max(place for place in range(inside) if order[place] == ("candidate", 0))
    between = set(order[start:last])  # nothing else takes a process's place in the caches
    assert between == {("candidate", 0), ("honest", FUSED)}
    assert order[start:inside].count(("candidate", 0)) == 2 * row.blocks  # all of them count
