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
        elif self.form == "turned":  # the mask is right, the tokens are not in its order
            tokens = hidden.transpose(1, 2).flatten(1, 2)
            scores = (tokens @ tokens.mT).masked_fill(far, -1e9)
        elif self.form == "features":  # no mask of scores: what it fills counts as a feature
            tokens = tokens.masked_fill(places[:, :1] == 0, 1.0)
            scores = tokens @ tokens.mT
        else:
            scores = scores + far.to(scores) * -100.0
        output: Tensor = self.out(scores.softmax(-1) @ tokens)
        if self.form == "turned":
            return output.unflatten(1, (columns, rows)).transpose(1, 2)
        return output.view(hidden.shape)


@pytest.mark.parametrize(
    ("reach", "form"),
    [
        ((1, 2), "filled"),
        ((1, 2), "chosen"),
        ((1, 2), "added"),
        ((2, 2), "filled"),
        ((1, 1), "turned"),
        ((9, 9), "features"),
    ],
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
    told = "rows and columns are alike without what is hidden by "
    assert (told in found.reason) == (form != "features" and found.status == "failed")
    assert "is wrong" not in found.reason


class Axes(nn.Module):
    """The means of a token's row and of its column, which may be cut from memory as they lie."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.out, self.is_right = nn.Linear(size, size), is_right

    def forward(self, hidden: Tensor) -> Tensor:
        batch, rows, columns, size = hidden.shape
        if self.is_right:
            below = hidden.mean(1, keepdim=True)
        else:
            run = hidden.reshape(batch * columns, rows, size).mean(1, keepdim=True)
            below = run.expand(-1, rows, -1).reshape(hidden.shape)
        output: Tensor = self.out(hidden.mean(2, keepdim=True) + below)
        return hidden + output


@pytest.mark.parametrize("is_right", [True, False])
def test_columns_that_are_cut_from_memory_as_it_lies_are_told(is_right: bool) -> None:
    spec = LayerSpec(
        name="axes",
        make=lambda size: Axes(size, is_right=is_right),
        grid=True,
        laws=("transposes_with_the_grid",),
        dtypes=("float64", "float32"),
    )
    report = attnbench.check(spec, profile="quick", invariants=["transposes_with_the_grid"])
    told = "axes: in place of their column, tokens of the grid see those that follow each other in"
    assert report.ok is is_right
    assert is_right or told in str(report)
    assert is_right or "token (0, 3) depends on its row and on those at (1, 0) and (1, 1)," in (
        report.outcomes[0].reason
    )


class Numbered(nn.Module):
    """Each token with the wave of its row and of its column, by the number of one of them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        rows, columns = hidden.shape[1:3]
        places = torch.arange(rows * columns).view(rows, columns, 1).to(hidden)
        waves = (places // rows).cos() + (places % rows).cos()
        output: Tensor = self.out(hidden * waves)
        return output


def test_a_grid_that_is_right_with_equal_sides_is_told() -> None:
    spec = LayerSpec(
        name="numbered",
        make=Numbered,
        grid=True,
        laws=("transposes_with_the_grid",),
        dtypes=("float64", "float32"),
    )
    report = attnbench.check(spec, profile="quick", invariants=["transposes_with_the_grid"])
    told = "numbered: rows and columns of the grid are treated alike where there are equally many"
    assert told in str(report)


class Clipped(nn.Module):
    """Distances of rows, which end at 3, and of columns; one form takes no grid of 4 x 4."""

    def __init__(self, size: int, *, is_picky: bool) -> None:
        super().__init__()
        self.out, self.is_picky = nn.Linear(size, size), is_picky

    def forward(self, hidden: Tensor) -> Tensor:
        rows, columns = hidden.shape[1:3]
        if self.is_picky and rows == columns == 4:
            raise IndexError("the table is too small")
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
        gaps = (places[:, None] - places).abs().minimum(torch.tensor((3, 9))).sum(-1)
        output: Tensor = self.out((-gaps.to(hidden)).softmax(-1) @ hidden.flatten(1, 2))
        return output.view(hidden.shape)


@pytest.mark.parametrize("is_picky", [False, True])
def test_equal_sides_are_no_cause_where_those_of_the_failing_grid_are_wrong(
    is_picky: bool,
) -> None:
    spec = LayerSpec(
        name="clipped",
        make=lambda size: Clipped(size, is_picky=is_picky),
        grid=True,
        laws=("transposes_with_the_grid",),
        dtypes=("float64", "float32"),
    )
    names = ["transposes_with_the_grid"]
    (found,) = attnbench.check(spec, profile="default", invariants=names).outcomes
    assert found.status == "failed"
    assert "transposed grid of 5 x" in found.reason or " x 5, transposed back" in found.reason
    assert "as many rows as columns" not in found.reason
