"""The laws on packed documents and pages hold for right functions, and tell what is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.right.packing import block_diagonal, gathered_pages, one_by_one
from torch import Tensor

import attnbench
from attnbench import MechanismSpec
from attnbench.adapters import paged, varlen
from attnbench.errors import StyleError

LAWS = ["packed_equals_separate", "packed_slack_is_inert"]
PAGES = ["pages_are_invisible"]


@pytest.mark.parametrize("function", [one_by_one, block_diagonal])
def test_right_functions_of_packed_documents_are_not_accused(function: Any) -> None:
    report = attnbench.check(varlen(function), profile="quick", invariants=LAWS)
    assert [o.status for o in report.outcomes] == ["passed"] * len(LAWS), str(report)


def test_a_right_function_of_pages_is_not_accused() -> None:
    report = attnbench.check(paged(gathered_pages), profile="quick", invariants=PAGES)
    assert [o.status for o in report.outcomes] == ["passed"], str(report)


def whole_pages(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """All slots of the pages of each row, of which those that were not written weigh 0."""
    rows = []
    for query, length, pages in zip(q, cache_seqlens.tolist(), block_table.long(), strict=True):
        key, value = (cache[pages].flatten(0, 1) for cache in (k_cache, v_cache))
        slots, last = (
            torch.arange(len(key)),
            length - len(query) + torch.arange(len(query))[:, None],
        )
        seen = slots <= (last if causal else length - 1)
        scores = torch.einsum("qhe,khe->hqk", query, key) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        rows.append(torch.einsum("hqk,khe->qhe", weights, value))
    return torch.stack(rows)


@pytest.mark.parametrize("slots", ["finite", "any"])
def test_nan_in_slots_that_were_not_written_reaches_nothing_where_that_is_promised(
    slots: str,
) -> None:
    reports = [
        attnbench.check(
            paged(function, conventions={"hidden_slots": slots}), profile="quick", invariants=PAGES
        )
        for function in (gathered_pages, whole_pages)
    ]
    assert [report.ok for report in reports] == [True, slots == "finite"], str(reports[1])
    assert reports[1].ok or "with NaN where nothing was written" in str(reports[1])


def test_a_law_on_packed_calls_needs_a_method() -> None:
    spec = MechanismSpec(
        name="bare", make=lambda *sizes: torch.nn.Identity(), laws=("packed_slack_is_inert",)
    )
    report = attnbench.check(spec, profile="quick", invariants=LAWS[1:])
    (found,) = report.outcomes
    assert "its module has no method packed" in found.reason


def test_a_function_of_other_arguments_is_refused() -> None:
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q

    with pytest.raises(StyleError, match="cannot be called as varlen: argument 4 should be cu_seq"):
        varlen(plain)
    with pytest.raises(StyleError, match="cannot be called as paged: argument 2 should be key_ca"):
        paged(plain)
