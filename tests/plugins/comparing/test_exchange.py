"""The exchange of slots: over servers that answer at once, and over processes that fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from attnbench_plugins.comparing import exchange
from attnbench_plugins.comparing.exchange import (
    AnotherAnswer,
    Exchange,
    Lost,
    Server,
    Side,
    Unmeasured,
)

from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import Selection
from attnbench.errors import UsageError

CASE = Selection("compare").cases()[0]
SIDES = Side("A", Path()), Side("B", Path())


class Instant(Server):
    """Every call takes as long; remembers who was asked for what."""

    asked: list[tuple[str, str]]
    each_s = 1e-3
    version: Mapping[str, int] = {}
    wrong: Mapping[str, str] = {}

    def __init__(self, side: Side, threads: int, core: int | None, timeout_s: float) -> None:
        self.side = side

    def wait(self) -> int:
        return self.version.get(self.side.name, 1)

    def end(self) -> None: ...

    def ask(self, action: str, *arguments: Any) -> Any:
        self.asked.append((self.side.name, action))
        answers = {
            "prepare": (self.each_s, "wall clock", ""),
            "slot": (1e-3, False),
            "answer": ("", b""),
            "difference": self.wrong.get(self.side.name, ""),
        }
        return answers.get(action)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    monkeypatch.setattr(exchange, "Server", Instant)
    Instant.asked = []
    return Instant.asked


def pair(**options: Any) -> Any:
    with Exchange(SIDES, **options) as found:
        ((_, result),) = found.pair([(CASE, ("a", "b"))])
    return result


def test_either_side_is_shaken_last_as_often(asked: list[tuple[str, str]]) -> None:
    """The side that is shaken last starts with warm caches, which is worth half a percent."""
    assert len(pair(contract=Contract(blocks=80))) == 80
    shaken = [side for side, what in asked if what == "shake"]
    last = shaken[1::2]
    assert len(last) == 80
    assert 25 < last.count("A") < 55


def test_a_process_that_closes_its_pipe_and_does_not_end_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'attnbench_plugins.comparing.server' in sys.orig_argv:\n"
        "    os.closerange(3, 100)\n"
        "    time.sleep(30)\n"
    )
    monkeypatch.setattr(exchange, "_END_S", 0.1)
    server = Server(Side("A", tmp_path, (tmp_path,)), 1, None, 1.0)
    try:
        with pytest.raises(UsageError, match="A: its process closed its pipe"):
            server.wait()
    finally:
        server.end()


def test_a_call_of_which_four_do_not_fit_into_the_time_is_refused(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Instant, "each_s", 0.6)
    refused = pair(timeout_s=2.0)
    assert isinstance(refused, Unmeasured)
    assert "one call takes 0.6 s, so a block does not fit into 2 s" in str(refused)
    assert ("A", "slot") not in asked


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("side", ["A", "B"])
def test_either_side_may_find_that_the_other_gave_another_answer(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Instant, "wrong", {side: "its output differs by up to 1"})
    found = pair()
    assert isinstance(found, AnotherAnswer)
    assert f"{side} gives another answer" in str(found)


@pytest.mark.usefixtures("asked")
def test_sides_that_measure_by_other_contracts_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Instant, "version", {"B": 2})
    with pytest.raises(UsageError, match="version 1 in A, 2 in B"):
        Exchange(SIDES).__enter__()


SCRIPT = """\
import sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
{rest}
"""


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("time.sleep(600)", r"no answer within 0\.5 s"),
        ("print('mine'); sys.exit(3)", "code 3\n.*mine"),
    ],
)
def test_a_side_that_cannot_be_imported_is_one_error_and_leaves_no_process(
    rest: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SCRIPT.format(rest=rest))
    monkeypatch.setattr(exchange, "_START_S", 0.5)
    monkeypatch.setattr(exchange, "_SERVER", (str(script),))
    side = Side("here", tmp_path)
    with pytest.raises(UsageError, match=f"(?s)here: .*{reason}.*imported"):
        Exchange((side, side)).__enter__()
    running = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not [line for line in running if str(script) in line]


def test_a_process_that_dies_says_how_and_its_row_alone_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "server.py"
    script.write_text(SCRIPT.format(rest="pipe.send(('', 4)); pipe.recv(); sys.exit(7)"))
    monkeypatch.setattr(exchange, "_SERVER", (str(script),))
    side = Side("here", tmp_path)
    with Exchange((side, side)) as found:
        results = dict(found.pair([(CASE, ("a", "b"))] * 2))
    assert [type(result) for result in results.values()] == [Lost, Lost]
    assert "here: its process ended itself with exit code 7" in str(results[0])
