"""A layer on grids whose rows and columns are not treated alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench import LayerSpec
from tests.invariant_runs import run


class Windows(nn.Module):
    """Each token of a grid sees those at most one row and two columns away, or as many rows."""

    def __init__(self, size: int, reach: tuple[int, int]) -> None:
        super().__init__()
        self.out, self.reach = nn.Linear(size, size), reach

    def forward(self, hidden: Tensor) -> Tensor:
        rows, columns = hidden.shape[1:3]
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
        far = ((places[:, None] - places).abs() > torch.tensor(self.reach)).any(-1)
        tokens = hidden.flatten(1, 2)
        scores = (tokens @ tokens.mT).masked_fill(far, -1e9)
        output: Tensor = self.out(scores.softmax(-1) @ tokens)
        return output.view(hidden.shape)


@pytest.mark.parametrize("reach", [(1, 2), (2, 2)])
def test_a_window_that_reaches_as_far_along_rows_as_along_columns_is_no_mistake(
    reach: tuple[int, int],
) -> None:
    spec = LayerSpec(
        name="windows",
        make=lambda size: Windows(size, reach),
        grid=True,
        laws=("transposes_with_the_grid",),
        dtypes=("float64", "float32"),
    )
    found = run(spec, "transposes_with_the_grid")
    assert (found.status == "passed") is (reach[0] == reach[1]), found.reason
