"""What is told of rows that are selected twice and share what is written afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, CheckReport, LayerSpec
from attnbench.invariants.caches import row_selection

SELECTED = "selected_rows_go_on_as_their_sequences"


def checked(name: str, make: Any, cache: CacheSpec) -> CheckReport:
    layer = LayerSpec(
        name=name,
        make=make,
        accepts=("cache",),
        causal=True,
        dtypes=("float64", "float32"),
        cache=cache,
    )
    return attnbench.check(layer, profile="quick", invariants=[SELECTED])


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
    report = checked("lists", Lists, CacheSpec(new=new, select=select))
    assert report.ok is (select is copied), str(report)
    told = "lists: what is appended to one of two rows that were selected from the same one reaches"
    assert (told in str(report)) is (select is shared)
    assert ("which was selected from the same row; with rows" in str(report)) is (select is shared)


class Summed(nn.Module):
    """Sums of the tokens so far, and of their squares."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        new, cache = self.linear(hidden), begun(self, len(hidden)) if cache is None else cache
        first = new.cumsum(1) + cache["sum"][:, None]
        second = new.square().cumsum(1) + cache["square"][:, None]
        cache.update(sum=first[:, -1], square=second[:, -1])
        return first + second


def begun(module: Summed, rows: int) -> dict[str, Tensor]:
    zeros = module.linear.weight.new_zeros(rows, module.linear.out_features)
    return {"sum": zeros, "square": zeros.clone()}


def mixed_up(cache: dict[str, Tensor], index: Tensor) -> None:
    cache.update(sum=cache["sum"][index], square=cache["sum"][index])


def test_what_a_selection_of_all_rows_changes_is_told() -> None:
    report = checked("sums", Summed, CacheSpec(new=begun, select=mixed_up))
    assert "sums: selecting rows of the cache changes what the rows hold" in str(report)
    told = "selecting all rows in their order changes cache['square'] (1, "
    assert told in str(report), str(report)


def test_a_buffer_that_is_cut_or_holds_nan_is_not_said_to_be_changed() -> None:
    held = {"buffer": torch.full((1, 4), torch.nan), "count": torch.zeros(1)}
    assert row_selection._changed_by_all(held, {**held, "order": torch.zeros(1)}) == ""
    assert row_selection._changed_by_all(held, {**held, "count": torch.ones(1)}).endswith("(1,)")
    cut = {"buffer": held["buffer"][:, :2], "count": torch.ones(1)}
    assert row_selection._changed_by_all(held, cut) == ""
