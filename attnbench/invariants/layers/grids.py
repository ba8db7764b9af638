"""The law of layers on grids that rows and columns are alike."""

from __future__ import annotations

import functools

import torch

from attnbench.checking.profiles import current_effort
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_invariant
from attnbench.invariants.toolkit.origins import differ
from attnbench.invariants.toolkit.other_operations import (
    HIDES_NOTHING,
    OtherOperations,
    Replaced,
)
from attnbench.subject.layer import LayerSubject

_ROWS, _COLUMNS = 3, 4
"""A grid whose rows and columns are told apart in memory."""


def _has_grid(subject: LayerSubject) -> str | None:
    return None if subject.spec.grid else "its tokens are no grid: declare grid=True"


@layer_invariant(regimes=("normal",), dtypes=("float64", "float32"), applies=_has_grid, law=True)
def transposes_with_the_grid(layer: LayerCase) -> None:
    """Transposing a grid of tokens transposes the output."""
    rows, columns = 1 + layer.choose(5), 1 + layer.choose(5)
    violation = _transposed(layer, rows, columns)
    if violation is not None:
        raise violation.explained(functools.partial(_told, layer, violation, rows, columns))


def _told(layer: LayerCase, violation: InvariantViolation, rows: int, columns: int) -> str:
    """Sentences on the reason of a violation, which takes the cause that they tell."""
    if not current_effort().explain:
        return ""
    if told := _reshaped(layer):
        violation.cause = "grid_reshaped"
        return told
    if rows != columns and _are_right(layer, {2, 3, 4, rows, columns}):
        violation.cause = "grid_of_unequal_sides"
        told = "\n  grids of as many rows as columns are right"
    return told + _unmasked(layer, rows, columns)


def _are_right(layer: LayerCase, sides: set[int]) -> bool:
    """Whether grids with so many rows, and as many columns, are right."""
    try:
        return all(_transposed(layer, side, side) is None for side in sorted(sides))
    except Exception:  # it takes grids of other sizes alone
        return False


def _transposed(layer: LayerCase, rows: int, columns: int) -> InvariantViolation | None:
    """The violation of a grid that is transposed, and its output back."""
    shape = (layer.case.lead[0], rows, columns, layer.case.query_size)
    grid = layer.other(layer.hidden.new_zeros(shape))
    expected = layer.run(grid)
    got = layer.run(grid.transpose(1, 2).contiguous()).transpose(1, 2)
    what = f"of the transposed grid of {rows} x {columns}, transposed back, output"
    real, limits = layer.real(grid), functools.partial(layer.limits, grid)
    return layer.differs(got, expected, real, limits, what=what, other="that of the grid")


def _reshaped(layer: LayerCase) -> str:
    """A sentence on tokens that see, in place of their column, others that follow in memory."""
    count, shape = _ROWS * _COLUMNS, (_ROWS, _COLUMNS, layer.hidden.shape[-1])
    one = layer.other(layer.hidden.new_zeros(1, count, shape[-1]))
    changed, own = one.repeat(count, 1, 1), torch.arange(count)
    changed[own, own] = layer.other(changed[own, own])  # item j of a batch has another token j
    try:
        before, after = (layer.run(t.view(-1, *shape)).flatten(1, 2) for t in (one, changed))
        limit = float(layer.limits(one.view(-1, *shape)).amax())
    except Exception:  # it takes grids of other sizes alone
        return ""
    seen = ((after - before).double().abs().cpu() > limit).any(-1).T
    same_row, run = (own[:, None] // n == own // n for n in (_COLUMNS, _ROWS))
    if not torch.equal(seen, same_row | run):
        return ""
    last = _COLUMNS - 1
    others = own[seen[last] & ~same_row[last]].tolist()
    places = " and ".join(str(divmod(other, _COLUMNS)) for other in others)
    return (
        f"\n  in a grid of {_ROWS} x {_COLUMNS}, token {(0, last)} depends on its row and on "
        f"those at {places}, which follow it in memory, and on none below it"
    )


def _unmasked(layer: LayerCase, rows: int, columns: int) -> str:
    """A sentence on a mask without which rows and columns are alike; empty if there is none."""
    shape = (layer.case.lead[0], rows, columns, layer.case.query_size)
    grid = layer.other(layer.hidden.new_zeros(shape))
    with OtherOperations() as noted:
        layer.run(grid)
    for key, ways in noted.ways.items():
        if HIDES_NOTHING not in ways:
            continue
        outputs = []
        for given in (grid, grid.transpose(1, 2).contiguous()):
            with Replaced({noted.numbers[key]: ways[HIDES_NOTHING]}):
                outputs.append(layer.run(given))
        if not differ(outputs[1].transpose(1, 2), outputs[0]):
            return f"\n  rows and columns are alike without what is hidden by {key.line}"
    return ""
