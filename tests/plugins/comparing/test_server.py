"""What the process of a side does."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnbench_plugins.comparing.server import Served

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.timing.contract import Contract
from attnbench.cases.case import Case

MECHANISM = """\
import attnbench
import torch

class Plain(torch.nn.Module):
    timed = False

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(()))

    def forward(self, query, key, value, attn_mask=None):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, attn_mask) * self.scale {work}

SPEC = attnbench.MechanismSpec(name="plain", make=lambda q, k, v: Plain())
"""


def served(folder: Path, name: str, work: str, direction: str, seed: int = 0) -> Served:
    file = folder / f"{name}.py"
    file.write_text(MECHANISM.format(work=work))
    case = BenchCase(Case((2,), 16, 16, 4, 4, 4, mask="padding", seed=seed), direction)
    found = Served()
    seconds, _, origin = found.prepare(f"{file}:SPEC", case, Contract(slot_s=1e-3, cap_s=1.0))
    assert seconds > 0
    assert origin == str(file)
    return found


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
def test_what_a_side_gave_while_it_was_timed_is_compared_with_the_other_side(
    tmp_path: Path, direction: str
) -> None:
    right = served(tmp_path, "right", "", direction)
    drifting = served(tmp_path, "drifting", "* (not self.timed)", direction)
    vars(drifting.module)["timed"] = True
    reasons = []
    for side in (right, drifting):
        for _ in range(4):
            side.slot()
        fault, answer = side.answer()
        assert not fault
        reasons.append(served(tmp_path, "other", "", direction).difference(answer))
    assert reasons[0] == ""
    assert "its output differs by up to" in reasons[1]


def test_sides_that_draw_other_parameters_are_compared_with_the_same_ones(tmp_path: Path) -> None:
    a, b = (served(tmp_path, "mine", "", "forward", seed) for seed in (0, 1))
    a.slot()
    b.slot()
    (_, of_a), (_, of_b) = a.answer(), b.answer()
    assert b.difference(of_a) == a.difference(of_b) == ""
