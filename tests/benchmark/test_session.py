"""Sessions whose processes are made up: orders and passes."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from attnbench.benchmark.records import Record
from attnbench.benchmark.session import Row, Session
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import Selection

CASES = Selection("run").cases()


class Processes:
    """Stands in for a session's processes: gives takes of known ratios, and notes the orders."""

    def __init__(self, spread: dict[str, float]) -> None:
        self.spread = spread
        self.orders: list[list[tuple[str, str]]] = []
        self.chance = random.Random(0)

    def __call__(self, session: Session, rows: Sequence[Any], number: int) -> Iterator[Any]:
        self.orders.append([(row.subject, row.case.id) for row in rows])
        for row in rows:
            name = row.subject
            ratio = {"slow": 2.0, "slow/kernel": 0.5}.get(name, 1.0)
            ratio *= 1 + self.spread.get(name, 0.0) * self.chance.uniform(-1, 1)
            yield {"status": "ok", "ratio": ratio, "time_s": 1e-3 * ratio}


def run(
    monkeypatch: pytest.MonkeyPatch,
    names: dict[str, float],
    *,
    earlier: Any = (),
    **more: Any,
) -> tuple[Processes, list[Record]]:
    processes = Processes(names)
    monkeypatch.setattr(Session, "_process", lambda self, r, n: processes(self, r, n))
    kinds = {name: "kernel" if "/" in name else "scoring" for name in names}
    session = Session(
        rows=[Row(name, name, kind, case) for case in CASES for name, kind in kinds.items()],
        contract=Contract(),
        setting={"run": "r", "versions": {}},
        **more,
    )
    return processes, list(session.records(earlier))


def test_each_pass_takes_all_rows_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated rows would keep their neighbours, and what one leaves behind for the next."""
    processes, _ = run(monkeypatch, dict.fromkeys("abcdefgh", 0.0))
    assert len(processes.orders) == 3
    assert len({frozenset(order) for order in processes.orders}) == 1
    neighbours = [set(itertools.pairwise(order)) for order in processes.orders]
    shared = [len(a & b) for a, b in itertools.combinations(neighbours, 2)]
    assert max(shared) <= 4, "of 15 pairs of neighbours"


def test_a_row_that_cannot_be_measured_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, records = run(monkeypatch, {"a": 0.0})
    ended = [dataclasses.replace(record, status="crashed") for record in records[:1]]
    processes, rest = run(monkeypatch, {"a": 0.0}, earlier=ended)
    assert [record for record in rest if record.key == ended[0].key] == ended
    assert {len(order) for order in processes.orders} == {len(records) // 3 - 1}
