"""The exchange of slots, over servers that answer at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnbench.benchmark.comparing import exchange
from attnbench.benchmark.comparing.exchange import Exchange, Side, Unmeasured


class Server:
    """Every call takes a millisecond; remembers who was asked for what."""

    asked: list[tuple[str, str]]

    def __init__(self, side: Side, threads: int) -> None:
        self.side = side

    def wait(self) -> None: ...

    def end(self) -> None: ...

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append((self.side.name, order["do"]))
        answers: dict[str, dict[str, Any]] = {
            "prepare": {"each_s": 1e-3, "clock": "wall clock", "origin": ""},
            "slot": {"s": 1e-3, "d": False},
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
