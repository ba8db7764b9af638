"""Pairs of levels: each that may come together does, whatever the seed."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from attnbench_judge.inputs.axes import AXES, FEW, MANY, axes_for
from attnbench_judge.inputs.covering import Coverage, Pair, Row, pairs_of
from attnbench_judge.inputs.drawn_streams import Deck

NAMES = {"attn_mask", "is_causal", "scale", "enable_gqa"}
SDPA = axes_for(NAMES, causal="top_left", grouped=True, style="sdpa")
FLASH = axes_for({"is_causal", "scale"}, grouped=True, style="flash")
BARE = axes_for((), causal="top_left", masks=(), grouped=False, style="sdpa")
FITS = (FEW.fits, MANY.fits)


def found_at_random(axes: Mapping[str, list[str]], count: int) -> set[Pair]:
    """Pairs of rows that are drawn without a cover, and fit."""
    chance = random.Random(0)
    pairs: set[Pair] = set()
    for _ in range(count):
        row: Row = {}
        for axis in chance.sample(list(axes), len(axes)):  # level by level, as long as it fits
            fitting = [level for level in axes[axis] if MANY.fits({**row, axis: level})]
            row = {**row, axis: chance.choice(fitting)} if fitting else {}
            if not row:
                break
        pairs |= pairs_of(row) if len(row) == len(axes) else set()
    return pairs


@pytest.mark.parametrize("axes", [SDPA, FLASH, BARE], ids=["sdpa", "flash", "bare"])
def test_every_pair_that_any_row_has_is_covered(axes: Mapping[str, list[str]]) -> None:
    rows = list(Coverage(axes, FITS, random.Random(0)).rows())
    assert all(set(row) == set(AXES) and MANY.fits(row) for row in rows)
    covered = {pair for row in rows for pair in pairs_of(row)}
    assert not found_at_random(axes, 600) - covered
    assert {level for pair in covered for level in pair} == {
        (axis, level) for axis in axes for level in axes[axis]
    }


@pytest.mark.parametrize("axes", [SDPA, BARE], ids=["sdpa", "bare"])
@pytest.mark.parametrize("seed", range(3))
def test_every_kind_comes_twice_among_few_keys_and_among_many(
    axes: Mapping[str, list[str]], seed: int
) -> None:
    chance = random.Random(seed)
    deck = Deck(chance)
    dealt: dict[bool, Counter[tuple[str, str]]] = {True: Counter(), False: Counter()}
    for row in Coverage(axes, FITS, chance).rows():
        many = deck.many = list(AXES["S"]).index(row["S"]) >= 4
        for axis in (axis for axis in row if axis not in ("S", "work")):
            level = AXES[axis][row[axis]]
            kinds = level.get("kinds", level.get("sizes")) if isinstance(level, dict) else level
            dealt_here = axis.startswith(("mask", "shape", "layout")) and kinds
            kind = deck.one_of(kinds, axis) if dealt_here else ""
            dealt[many][row[axis], kind] += 1
    every = dealt[True].keys() | dealt[False].keys()
    assert len(every) > 50
    assert not [kind for kind in every if min(dealt[True][kind], dealt[False][kind]) < 2]


@pytest.mark.parametrize("seed", [0, 17, 35])
def test_what_is_refused_hides_no_other_pair(seed: int) -> None:
    def refuses(row: Row) -> bool:
        wide = row["E"] == "E of 513 to 1024"
        return wide or (row["H"] == "H = 7" and row["dtype"] == "float16")

    coverage = Coverage(SDPA, FITS, random.Random(seed))
    for row in coverage.rows():
        coverage.add(row, right=not refuses(row))
    assert coverage.untried() == ["E of 513 to 1024", "H = 7 with float16"]


def test_a_callee_that_takes_everything_is_called_once_for_each_row() -> None:
    coverage = Coverage(BARE, FITS, random.Random(0))
    rows = list(coverage.rows())
    for row in rows:
        coverage.add(row, right=True)
    assert len(rows) < 280
    assert coverage.untried() == []


@pytest.mark.parametrize(
    ("names", "conventions", "style", "left_out"),
    [
        ((), {"masks": ()}, "sdpa", {"scale above 2", "causal, L > S"}),
        (NAMES, {"empty_rows": "mean"}, "flash", {"causal, L > S", "Ev < E"}),
        (NAMES, {"masks": ("boolean",)}, "sdpa", {"floating mask, finite"}),
        (NAMES, {"causal": "square"}, "sdpa", {"causal, L > S", "causal, L < S"}),
    ],
)
def test_levels_that_a_callee_does_not_take_are_left_out(
    names: Collection[str], conventions: dict[str, Any], style: str, left_out: set[str]
) -> None:
    axes = axes_for(names, grouped=True, style=style, **conventions)
    left = {level for axis in axes for level in axes[axis]}
    assert not left_out & left
    assert {"L = 1", "no mask", "causal, L = S"} - left <= {"causal, L = S"} - set(names)
