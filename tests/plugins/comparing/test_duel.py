"""Duels over pairs that are made up: looks, what goes on, and what ends early."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from attnbench_plugins.comparing import verdict_tables
from attnbench_plugins.comparing.duel import Duel, Row
from attnbench_plugins.comparing.exchange import AnotherAnswer

from attnbench.benchmark.timing.blocks import Block, Slot
from attnbench.benchmark.workloads import Selection

CASE = Selection("compare").cases()[0]


class Exchange:
    """Gives pairs of known effects, and remembers what it was asked for."""

    def __init__(self, effects: dict[str, float | str], spread: float = 0.01) -> None:
        self.effects, self.spread = effects, spread
        self.chance = random.Random(0)
        self.asked: list[list[str]] = []

    def pair(self, rows: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        self.asked.append([row[1][0] for row in rows])
        for number, row in enumerate(rows):
            effect = self.effects[row[1][0]]
            if isinstance(effect, str):
                yield number, AnotherAnswer(effect)
                continue
            a, b = Slot(1.0), Slot((1 + effect) * math.exp(self.chance.gauss(0, self.spread)))
            yield number, [Block("ABBA", (a, b, b, a))]


def duel(effects: dict[str, float | str], *, spread: float = 0.01, **more: Any) -> Any:
    rows = [Row(name, CASE, (name, name)) for name in effects]
    found = Duel(Exchange(effects, spread), rows, **more)
    list(found.run())
    return found


def verdicts(found: Duel) -> dict[str, str]:
    return {row.subject: row.verdict for row in found.rows}


def test_of_too_few_pairs_no_interval_is_shown() -> None:
    (row,) = duel({"steady": 0.5}, spread=0.0, looks={2: 0.005}).rows
    assert row.reason == "undecided after 2 pairs, too few for an interval"
    shown = verdict_tables.cells(verdict_tables.duel_json(row))
    assert [shown[name] for name in ("change", "from", "to", "would see", "spread")] == [
        "+50.0%",
        *("-", "-", "-", "-"),
    ]


def test_what_is_decided_at_the_first_look_goes_on_no_further() -> None:
    found = duel({"steady": 0.0, "slow": 0.1, "near": 0.03}, spread=0.02)
    asked = found.exchange.asked
    assert verdicts(found)["slow"] == "slower"
    assert all("slow" in names for names in asked[:15])
    assert not any("slow" in names for names in asked[15:])


def test_a_duel_ends_with_the_look_that_decides_its_last_row() -> None:
    found = duel({"steady": 0.0, "slow": 0.1, "quick": -0.1})
    assert verdicts(found) == {"steady": "same", "slow": "slower", "quick": "faster"}
    assert found.pairs == 15


def test_what_is_not_decided_at_the_last_look_is_ambiguous_and_says_so() -> None:
    found = duel({"loud": 0.0}, spread=0.5)
    assert found.pairs == 60
    assert verdicts(found) == {"loud": "ambiguous"}
    assert found.rows[0].reason == "undecided after 60 pairs"


def test_another_answer_ends_its_row_alone() -> None:
    reason = "B gives another answer: its output differs by up to 1"
    found = duel({"other": reason, "steady": 0.0})
    assert not any("other" in names for names in found.exchange.asked[1:])
    assert (found.rows[0].refused, found.rows[0].differs, found.rows[0].reason) == (
        True,
        True,
        reason,
    )
    assert verdicts(found) == {"other": "ambiguous", "steady": "same"}


def test_no_further_pair_begins_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 1))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    found = duel({"slow": 0.2}, budget_s=40.0)
    assert 2 < found.pairs < 15
    assert found.short
    assert len(found.rows[0].values) == found.pairs


def test_an_interruption_keeps_what_was_decided() -> None:
    class Interrupted(Exchange):
        def pair(self, rows: Sequence[Any]) -> Iterator[tuple[int, Any]]:
            if len(self.asked) == 20:
                raise KeyboardInterrupt
            yield from super().pair(rows)

    effects: dict[str, float | str] = {"slow": 0.2, "near": 0.035}
    rows = [Row(name, CASE, (name, name)) for name in effects]
    found = Duel(Interrupted(effects, 0.04), rows)
    with pytest.raises(KeyboardInterrupt):
        list(found.run())
    assert verdicts(found) == {"slow": "slower", "near": "ambiguous"}
