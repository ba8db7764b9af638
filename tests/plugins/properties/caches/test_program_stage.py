"""What the programs of a case share."""

from __future__ import annotations

import torch
from attnbench_plugins.properties.caches.stage import Stage
from torch import Tensor, nn

from attnbench import LayerSpec
from attnbench.cases.case import Case
from attnbench.subject.layer import LayerSubject
from attnbench.subject.lookup import resolve


class Counting(nn.Module):
    """Adds the number of its calls, so that an output tells which call it is of."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden + self.calls


def test_an_output_is_remembered_until_that_of_a_new_module_is_asked_for() -> None:
    (subject,) = resolve(LayerSpec(name="counting", make=Counting))
    assert isinstance(subject, LayerSubject)
    stage = Stage(subject, Case((1,), 1, 1, 2, 2, 2))
    first, second, third = stage.tokens[:1, :3].split(1, 1)
    assert torch.equal(stage.expected(first), first + 1)
    assert torch.equal(stage.expected(second), second + 2)
    assert torch.equal(stage.expected(first), first + 1)
    assert torch.equal(stage.expected(second, anew=True), second + 1)
    assert torch.equal(stage.expected(second), second + 1)
    assert torch.equal(stage.expected(third), third + 1)  # by a module in place of the called one
