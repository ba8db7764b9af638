"""Recorded blocks of a busy machine, replayed: 15 pairs of the same code, and of 5 % more work.

They were recorded by ``benchmarks/pairs.py record``, with some twelve processes on two cores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnbench.benchmark.comparing.verdict import LOOKS, judge_pairs
from benchmarks.pairs import read

RECORDED = Path(__file__).parent / "recorded"


def values(name: str) -> list[float]:
    return [float(str(pair["value"])) for pair in read(RECORDED / f"{name}.jsonl")]


def test_unchanged_code_is_not_called() -> None:
    (found,) = judge_pairs(np.array([values("same")]).T, alpha=LOOKS[15])
    assert found.verdict in ("same", "ambiguous")
    assert found.low < 0 < found.high


def test_the_interval_of_five_percent_more_work_holds_five_percent() -> None:
    (found,) = judge_pairs(np.array([values("five_percent")]).T, alpha=LOOKS[15])
    assert found.verdict != "faster"
    assert found.low < 0.05 < found.high
    assert found.effect == pytest.approx(0.05, abs=0.02)
