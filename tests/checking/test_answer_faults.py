"""Where a subject raised, as a failure tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnbench

RAISES = """
import attnbench
import torch

class Raises(torch.nn.Module):
    def forward(self, query, key):
        raise ValueError("not today")

SPEC = attnbench.ScoringSpec(name="raises", make=lambda q, k: Raises(), equal_sizes=True)
"""


@pytest.mark.slow
def test_an_exception_names_the_users_line_in_a_folder_called_torch(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "layers_of_mine.py"
    file.parent.mkdir()
    file.write_text(RAISES)
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.of("failed")
    assert "ValueError: not today (layers_of_mine.py:7)" in outcome.reason
