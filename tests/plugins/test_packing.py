"""The laws on packed documents and pages hold for right functions, and tell what is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.mutants.packing import MUTANTS
from attnbench_zoo.right.packing import block_diagonal, gathered_pages, one_by_one
from torch import Tensor

import attnbench
from attnbench import MechanismSpec
from attnbench.adapters import paged, varlen
from attnbench.cases.case import Case
from attnbench.checking.plan import select_invariants
from attnbench.errors import InvariantViolation, StyleError
from attnbench.subject.lookup import resolve

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


def to_the_end_of_the_page(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
    shorter: bool = False,
) -> Tensor:
    """The length of a row is taken for that of its pages, or only if others have more of them."""
    size = k_cache.shape[1]
    whole = (cache_seqlens + size - 1) // size * size
    if shorter:
        whole = torch.where(whole < block_table.shape[1] * size, whole, cache_seqlens)
    return gathered_pages(
        q, k_cache, v_cache, cache_seqlens=whole, block_table=block_table, causal=causal
    )


def window_of_the_row_before(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
    softcap: float = 0.0,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The first key of a window is that of the longest row so far."""
    rows, first = [], 0
    for query, length, pages in zip(q, cache_seqlens.tolist(), block_table.long(), strict=True):
        key, value = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        slots = torch.arange(length)
        own = length - len(query) + torch.arange(len(query))[:, None]
        behind, ahead = window_size
        first = max(first, length - len(query) - behind) if behind >= 0 else 0
        seen = (slots >= min(first, length - 1)) & ((slots >= own - behind) | (behind < 0))
        seen = seen & ((slots <= own + ahead) | (ahead < 0)) & ((slots <= own) | (not causal))
        scores = torch.einsum("qhe,khe->hqk", query, key) / q.shape[-1] ** 0.5
        scores = softcap * (scores / softcap).tanh() if softcap else scores
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        rows.append(torch.einsum("hqk,khe->qhe", weights, value))
    return torch.stack(rows)


def test_an_option_that_is_wrong_over_pages_is_found() -> None:
    report = attnbench.check(paged(window_of_the_row_before), profile="quick", invariants=PAGES)
    assert not report.ok


def one_page_too_few(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """A last page that is full is not read, unless it is the only one."""
    size = k_cache.shape[1]
    held = (cache_seqlens - 1) // size * size
    full = (cache_seqlens % size == 0) & (held > 0)
    held = torch.where(full, held, cache_seqlens)
    return gathered_pages(
        q, k_cache, v_cache, cache_seqlens=held, block_table=block_table, causal=causal
    )


@pytest.mark.parametrize("function", [to_the_end_of_the_page, one_page_too_few])
def test_a_wrong_number_of_slots_of_a_page_is_found(function: Any) -> None:
    assert not attnbench.check(paged(function), profile="quick", invariants=PAGES).ok


def pages_laid(q: Tensor, k: Tensor, v: Tensor, lens: Tensor, table: Tensor, way: str) -> Tensor:
    """Pages are looked up otherwise than by the table of their row; for one query they are not."""
    numbers = torch.arange(table.shape[1])
    other = {
        "pages_after_the_first": table[:, :1] + numbers,
        "pages_in_memory": torch.arange(len(table))[:, None] + numbers,
        "pages_of_another": table.roll(1, 0),
    }[way]
    other = other.clamp(max=len(k) - 1)
    other = table if q.shape[1] == 1 else other
    return gathered_pages(q, k, v, cache_seqlens=lens, block_table=other)


@pytest.mark.parametrize("way", ["pages_after_the_first", "pages_in_memory", "pages_of_another"])
def test_pages_that_are_read_elsewhere_are_found(way: str) -> None:
    def paged_wrongly(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cache_seqlens: Tensor,
        block_table: Tensor,
        causal: bool = False,
    ) -> Tensor:
        return pages_laid(q, k_cache, v_cache, cache_seqlens, block_table, way)

    (subject,) = resolve(paged(paged_wrongly))
    (invariant,) = select_invariants(PAGES)
    case = Case((), 3, 5, 4, 4, 4).tried(order="plain", heads="own", beside="nothing")
    with pytest.raises(InvariantViolation, match="each row by itself"):
        invariant.check(subject, case)


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


def test_a_failure_tells_the_lengths_of_the_documents() -> None:
    (spec,) = [m.spec for m in MUTANTS if m.name == "segments_cast_to_bool"]
    report = attnbench.check(spec, profile="quick", invariants=LAWS[:1])
    (found,) = report.outcomes
    assert found.status == "failed"
    assert "packed output of documents of [" in found.reason
    assert "each document by itself has" in found.reason


def one_diagonal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """All documents have the diagonal of the longest query and key."""
    rows, start = [], [cu_seqlens_q.tolist(), cu_seqlens_k.tolist()]
    for first, last, first_key, last_key in zip(*(s[i:] for s in start for i in (0, 1))):  # noqa: B905
        query, key, value = q[first:last], k[first_key:last_key], v[first_key:last_key]
        scores = torch.einsum("qhe,khe->hqk", query, key) / q.shape[-1] ** 0.5
        if causal:
            seen = torch.ones(scores.shape[1:], dtype=torch.bool)
            scores = scores.masked_fill(~seen.tril(max_seqlen_k - max_seqlen_q), -torch.inf)
        rows.append(torch.einsum("hqk,khe->qhe", scores.softmax(-1).nan_to_num(0.0), value))
    return torch.cat([*rows, torch.zeros(len(q) - start[0][-1], *q.shape[1:], dtype=q.dtype)])


def test_a_diagonal_that_alone_is_wrong_is_found() -> None:
    assert not attnbench.check(varlen(one_diagonal), profile="quick", invariants=LAWS).ok


def numbered_by_marks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Documents are counted by a mark at their ends, of which two that meet count once."""
    ends = ((q, cu_seqlens_q), (k, cu_seqlens_k))
    rows, columns = (
        torch.zeros(len(tokens) + 1, dtype=torch.long)
        .index_fill(0, offsets[1:].long(), 1)
        .cumsum(0)[:-1]
        for tokens, offsets in ends
    )
    scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
    seen = rows[:, None] == columns
    if causal:
        left, key_left = (
            offsets[1:][number] - torch.arange(len(number))
            for offsets, number in ((cu_seqlens_q, rows), (cu_seqlens_k, columns))
        )
        seen &= key_left >= left[:, None]
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khe->qhe", scores.softmax(-1).nan_to_num(0.0), v)


def test_a_document_without_queries_that_moves_others_is_found() -> None:
    report = attnbench.check(varlen(numbered_by_marks), profile="quick", invariants=LAWS[:1])
    assert not report.ok


def corner_of_the_longest(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
) -> Tensor:
    """Causality ends at the last key of the longest row, and each row's keys at its own."""
    size, rows = k_cache.shape[1], []
    for query, length, pages in zip(q, cache_seqlens.tolist(), block_table.long(), strict=True):
        used = pages[: -(-length // size)]
        key, value = (cache[used].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        scores = torch.einsum("qhe,khe->hqk", query, key) / q.shape[-1] ** 0.5
        if causal:
            seen = torch.ones(scores.shape[1:], dtype=torch.bool)
            last = int(cache_seqlens.max()) - len(query)
            scores = scores.masked_fill(~seen.tril(last), -torch.inf)
        rows.append(torch.einsum("hqk,khe->qhe", scores.softmax(-1), value))
    return torch.stack(rows)


def test_a_corner_that_alone_is_wrong_over_pages_is_found() -> None:
    report = attnbench.check(paged(corner_of_the_longest), profile="quick", invariants=PAGES)
    assert not report.ok


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
