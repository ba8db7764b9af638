"""What a module's own backward pass raises is the module's fault."""

from __future__ import annotations

from attnbench_plugins.adapters.adaptation import spec_of
from torch import Tensor, nn

import attnbench
from tests.attention_functions import statuses, with_gradient


def _not_kept(gradient: Tensor) -> Tensor:
    """As a reversible block in evaluation, it has not kept what its backward pass needs."""
    raise TypeError("expected a torch.ByteTensor, but got NoneType")


class Reversible(nn.Module):
    """Self-attention whose backward pass raises."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, L, E)`` to the same."""
        q, k, v = self.qkv(x).chunk(3, -1)
        return with_gradient(_not_kept)((q @ k.mT).softmax(-1) @ v)


def test_what_a_modules_own_backward_pass_raises_is_its_failure() -> None:
    names = ["training_steps_follow_each_other"]
    report = attnbench.check(spec_of(Reversible), profile="quick", invariants=names)
    assert statuses(report) == {names[0]: "failed"}, str(report)
    assert "the first backward raised TypeError: expected a torch.ByteTensor" in str(report)
