"""The process of a side, as far as its answers are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.benchmark.comparing import sides
from attnbench.benchmark.comparing.sides import Late, Server, Side

ANSWERS = """\
import sys
sys.stdout.write('{"contract": 1}\\n{"second": 2}\\n{"torn":')
sys.stdout.flush()
sys.stdin.read()
"""


def test_two_answers_in_one_read_are_both_given_and_half_an_answer_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS)
    monkeypatch.setattr(sides, "_SERVER", (str(script),))
    server = Server(Side("A", tmp_path), threads=1)
    try:
        assert server.wait() == 1
        assert server.ask({}, timeout_s=60.0) == {"second": 2}
        with pytest.raises(Late):
            server.ask({}, timeout_s=0.1)
    finally:
        server.end()
