"""What is told of a layer on grids whose rows and columns are not treated alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec


class Windows(nn.Module):
    """Each token of a grid sees those at most one row and two columns away, or as many rows."""

    def __init__(self, size: int, reach: tuple[int, int], form: str) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)
        self.reach, self.form = reach, form

    def forward(self, hidden: Tensor) -> Tensor:
        rows, columns = hidden.shape[1:3]
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
        gaps = (places[:, None] - places).abs()
        far = (gaps > torch.tensor(self.reach)).any(-1)
        tokens = hidden.flatten(1, 2)
        scores = tokens @ tokens.mT
        if self.form == "filled":
            scores = scores.masked_fill(far, -1e9)
        elif self.form == "chosen":
            scores = torch.where(far, -1e9, scores)
        else:
            scores = scores + far.to(scores) * -100.0
        output: Tensor = self.out(scores.softmax(-1) @ tokens)
        return output.view(hidden.shape)


@pytest.mark.parametrize(
    ("reach", "form"),
    [((1, 2), "filled"), ((1, 2), "chosen"), ((1, 2), "added"), ((2, 2), "filled")],
)
def test_a_mask_without_which_rows_and_columns_are_alike_is_named(
    reach: tuple[int, int], form: str
) -> None:
    spec = LayerSpec(
        name="windows",
        make=lambda size: Windows(size, reach, form),
        grid=True,
        laws=("transposes_with_the_grid",),
        dtypes=("float64", "float32"),
    )
    names = ["transposes_with_the_grid"]
    (found,) = attnbench.check(spec, profile="quick", invariants=names).outcomes
    assert found.status == ("passed" if reach == (2, 2) else "failed")
    assert ("hides nothing: its mask is wrong" in found.reason) == (reach != (2, 2))
