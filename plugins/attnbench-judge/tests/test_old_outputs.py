"""Which earlier outputs are asked for again."""

import random

import torch
from attnbench_judge.process.old_outputs import OldOutputs


def test_every_output_that_is_due_is_still_held() -> None:
    for seed in range(20):
        old, asked = OldOutputs(random.Random(seed)), []
        for number in range(300):
            held = old.held
            old.add(torch.tensor([number]))
            for later, copy in old.due():
                assert later <= held
                assert int(copy) == number - later
                asked.append(later)
        assert min(asked) < 8
        assert max(asked) > 24
        assert old.held == 64


def test_large_outputs_are_asked_for_before_they_are_given_up() -> None:
    old = OldOutputs(random.Random(0))
    large = torch.empty(1 << 26, dtype=torch.uint8)
    asked = []
    for _ in range(9):
        old.add(large)
        asked += [later for later, _ in old.due()]
        assert old.held <= 2
    assert set(asked) == {1}
