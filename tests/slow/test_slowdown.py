"""A slowdown between two commits: ``asv continuous`` reports it, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.asv_scratch import Scratch, changed

BENCH = ("--bench", "L=S=64.*cpu")
CONTINUOUS = ("continuous", "--interleave-rounds", "--factor", "1.2")
"""In rounds, so that what the machine drifts by falls on both commits."""
BEFORE, AFTER = (8, 1), (15, 1)
"""With what a score costs beside its work, half as much again for the whole call."""


def test_a_slowdown_of_a_half_is_reported_and_nothing_else(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "repository")
    scratch.commit({"quick": BEFORE, "steady": BEFORE})
    scratch.commit({"quick": AFTER, "steady": BEFORE})
    out = scratch.asv(*CONTINUOUS, "HEAD~1", "HEAD", *BENCH, codes=(0, 1))
    slower = {"attention.quick.track_time", "attention.quick.track_time_backward"}
    assert "attention.quick.track_time" in changed(out) <= slower, out
    assert "PERFORMANCE DECREASED" in out
