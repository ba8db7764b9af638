"""Changes of two places at once, and with what stands at a third."""

from __future__ import annotations

import pytest

from attnbench.checking.mending.edit_context import REMOVAL
from tests.checking.mending.test_edits import NAMES, TENSOR, made


def test_a_mask_that_may_be_none_is_asked_for_first() -> None:
    source = [
        "def attend(query, real):",
        "    x = query.cumsum(1)",
        "    y = 0 if real is not None else 1",
    ]
    texts = {edit.applied(source)[1].strip() for edit in made(source, {2: NAMES})}
    assert "x = (query * real[:, :, None] if real is not None else query).cumsum(1)" in texts


def test_a_value_that_is_used_twice_is_written_out_with_a_difference_the_other_way_round() -> None:
    source = ["def look(query, key):", "    x = (query - key).clamp(0, last - 1)", "    y = x"]
    texts = {edit.applied(source)[2].strip() for edit in made(source, {3: NAMES})}
    assert "y = (key - query).clamp(0, last - 1)" in texts


def test_only_parts_that_a_statement_keeps_together_are_cut() -> None:
    source = [
        "def crop(cache, length, k, v):",
        "    cache['k'], cache['v'] = k, v",
        "    return {name: x[:, :length] for name, x in cache.items()}",
    ]
    texts = {edit.applied(source)[2].strip() for edit in made(source, {2: NAMES, 3: NAMES})}
    cut = "x[:, :length] if name in ('k', 'v') else x"
    assert f"return {{name: {cut} for name, x in cache.items()}}" in texts


def test_sizes_are_exchanged_in_one_line_and_axes_no_longer_in_another() -> None:
    source = [
        "def fold(query):",
        "    query = query.reshape(first, last, 4).transpose(0, 1)",
        "    return query.transpose(1, 2)",
    ]
    found = [edit.applied(source)[1:] for edit in made(source, {2: NAMES, 3: NAMES})]
    there = "    query = query.reshape(last, first, 4).transpose(-3, -2).transpose(0, 1)"
    assert [there, "    return query"] in found


def test_no_branch_is_moved_behind_all_that_reads_what_it_sets() -> None:
    source = [
        "def keep(cache, query):",
        "    if query.shape[1] > 4:",
        "        query = query[:, -4:]",
        "    cache.query = query",
    ]
    found = [edit.applied(source)[1] for edit in made(source, dict.fromkeys((2, 3, 4), NAMES))]
    assert source[3] not in found


def test_what_follows_a_name_elsewhere_follows_it_here() -> None:
    source = [
        "def visible(query, key):",
        "    x = query + first <= key",
        "    y = query - last <= key",
    ]
    texts = {edit.applied(source)[2].strip() for edit in made(source, {2: NAMES, 3: NAMES})}
    assert "y = (query + first) - last <= key" in texts


@pytest.mark.parametrize(("other", "is_less"), [("query", True), ("x, query", False)])
def test_what_leaves_the_only_read_of_a_tensor_out_is_a_removal(other: str, is_less: bool) -> None:
    source = ["def gate(query, key):", "    x = query * 2", f"    y = {other}", "    return x"]
    names = {**NAMES, "x": TENSOR}
    found = [edit for edit in made(source, {4: names}) if edit.text == "key"]
    assert [edit.rank == REMOVAL for edit in found] == [is_less]
