from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench.oracle.operations import RoundedMeans, RoundedOperations

EPS = 2.0**-23


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.unflatten(0, (-1, 3)).flatten(1)).unflatten(1, (3, 2)).flatten(0, 1)


def _largest_change(module: nn.Module, x: Tensor) -> Tensor:
    """The largest change of the output in float64 that rounding its means makes."""
    module = module.double()
    still, mode = module(x.double()), RoundedMeans(EPS)
    largest = torch.zeros_like(still)
    with mode:
        for _ in range(4):
            largest = torch.maximum(largest, (module(x.double()) - still).abs())
    module.float()
    return largest


@pytest.mark.parametrize("module", [nn.LayerNorm(2), ByHand(), Groups()])
@torch.no_grad()
def test_what_a_normalisation_of_two_features_loses_far_from_the_origin_is_seen(
    module: nn.Module,
) -> None:
    x = 1000 + torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    change = _largest_change(module, x)
    lost = (module(x).double() - module.double()(x.double())).abs()
    assert float(lost.max()) > 1e-4
    assert bool((lost <= 4 * (change + EPS)).all())


@torch.no_grad()
def test_a_cancellation_that_the_module_brings_about_is_not() -> None:
    x = 1000 + torch.randn(50, 4, dtype=torch.float64)
    with RoundedMeans(EPS):
        far = x.square().sum(-1)[:, None] + x.square().sum(-1) - 2 * x @ x.mT
    assert torch.equal(far, x.square().sum(-1)[:, None] + x.square().sum(-1) - 2 * x @ x.mT)


@torch.no_grad()
def test_rounded_operations_leave_what_is_exact_alone() -> None:
    with RoundedOperations(EPS):
        assert torch.arange(9.0).sum() == 36
        assert torch.ones(3, dtype=torch.float64).div(3).ne(1 / 3).any()
