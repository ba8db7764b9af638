"""What is told of rows that are selected twice and share what is written afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec

SELECTED = "selected_rows_go_on_as_their_sequences"


class Lists(nn.Module):
    """The sum of the tokens so far, of which a cache has a list for each row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        rows = []
        for number, new in enumerate(self.linear(hidden)):
            held = [] if cache is None else cache["lists"][cache["reads"][number]]
            before = torch.stack([*held, torch.zeros_like(new[:1]).sum(0)]).sum(0)
            own = [] if cache is None else cache["lists"][cache["writes"][number]]
            own.extend(new.unbind())
            rows.append(before + new.cumsum(0))
        return torch.stack(rows)


def new(module: nn.Module, rows: int) -> dict[str, Any]:
    return {"lists": [[] for _ in range(rows)], "reads": [*range(rows)], "writes": [*range(rows)]}


def shared(cache: dict[str, Any], index: Tensor) -> None:
    cache.update(lists=[cache["lists"][row] for row in index.tolist()])
    cache.update(reads=[*range(len(index))], writes=[*range(len(index))])


def copied(cache: dict[str, Any], index: Tensor) -> None:
    shared(cache, index)
    cache["lists"] = [[*held] for held in cache["lists"]]


def misread(cache: dict[str, Any], index: Tensor) -> None:
    """Rows are copies, and the table of what is read is still that of the rows before."""
    copied(cache, index)
    cache["reads"] = index.tolist()


@pytest.mark.parametrize("select", [shared, copied, misread])
def test_rows_that_share_memory_are_told_as_that(select: Any) -> None:
    layer = LayerSpec(
        name="lists",
        make=Lists,
        accepts=("cache",),
        causal=True,
        dtypes=("float64", "float32"),
        cache=CacheSpec(new=new, select=select),
    )
    report = attnbench.check(layer, profile="quick", invariants=[SELECTED])
    assert report.ok is (select is copied), str(report)
    told = "lists: what is appended to one of two rows that were selected from the same one reaches"
    assert (told in str(report)) is (select is shared)
    assert ("which was selected from the same row; with rows" in str(report)) is (select is shared)
