"""The exchange of slots, over servers that answer at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnbench.benchmark.comparing import exchange
from attnbench.benchmark.comparing.exchange import Exchange
from attnbench.benchmark.comparing.sides import Side, Unmeasured
from attnbench.errors import UsageError


class Server:
    """Every call takes as long; remembers who was asked for what."""

    asked: list[tuple[str, str]]
    each_s = 1e-3
    version: Mapping[str, int] = {}

    def __init__(self, side: Side, threads: int) -> None:
        self.side = side

    def wait(self) -> int:
        return self.version.get(self.side.name, 1)

    def end(self) -> None: ...

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append((self.side.name, order["do"]))
        answers: dict[str, dict[str, Any]] = {
            "prepare": {"each_s": self.each_s, "clock": "wall clock", "origin": ""},
            "slot": {"s": 1e-3, "d": False},
            "answer": {"fault": ""},
            "same": {"reason": ""},
        }
        return answers.get(order["do"], {})


def test_either_side_is_shaken_last_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side that is shaken last starts with warm caches, which is worth half a percent."""
    monkeypatch.setattr(exchange, "Server", Server)
    asked: list[tuple[str, str]] = []
    Server.asked = asked
    sides = (Side("A", Path()), Side("B", Path()))
    with Exchange(sides, blocks=80) as found:
        ((_, blocks),) = found.pair([({}, {})])
    assert not isinstance(blocks, Unmeasured)
    assert len(blocks) == 80
    shaken = [side for side, what in asked if what == "shake"]
    last = shaken[1::2]
    assert len(last) == 80
    assert 25 < last.count("A") < 55


def test_a_call_of_which_four_do_not_fit_into_the_time_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "Server", Server)
    monkeypatch.setattr(Server, "each_s", 0.6)
    Server.asked = []
    sides = (Side("A", Path()), Side("B", Path()))
    with Exchange(sides, timeout_s=2.0) as found:
        ((_, refused),) = found.pair([({}, {})])
    assert isinstance(refused, Unmeasured)
    assert "one call takes 0.6 s, so a block does not fit into 2 s" in str(refused)
    assert ("A", "slot") not in Server.asked


def test_sides_that_measure_by_other_contracts_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "Server", Server)
    monkeypatch.setattr(Server, "version", {"B": 2})
    with pytest.raises(UsageError, match="version 1 in A, 2 in B"):
        Exchange((Side("A", Path()), Side("B", Path()))).__enter__()
