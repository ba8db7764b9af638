"""The law of layers on grids that rows and columns are alike."""

from __future__ import annotations

import functools

from torch import Tensor

from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_invariant
from attnbench.invariants.toolkit.origins import differ
from attnbench.invariants.toolkit.other_operations import (
    HIDES_NOTHING,
    OtherOperations,
    Replaced,
)
from attnbench.subject.layer import LayerSubject


def _has_grid(subject: LayerSubject) -> str | None:
    return None if subject.spec.grid else "its tokens are no grid: declare grid=True"


@layer_invariant(regimes=("normal",), dtypes=("float64", "float32"), applies=_has_grid, law=True)
def transposes_with_the_grid(layer: LayerCase) -> None:
    """Transposing a grid of tokens transposes the output."""
    rows, columns = 1 + layer.choose(5), 1 + layer.choose(5)
    shape = (layer.case.lead[0], rows, columns, layer.case.query_size)
    grid = layer.other(layer.hidden.new_zeros(shape))
    expected = layer.run(grid)
    got = layer.run(grid.transpose(1, 2).contiguous()).transpose(1, 2)
    what = f"of the transposed grid of {rows} x {columns}, transposed back, output"
    violation = layer.differs(
        got,
        expected,
        layer.real(grid),
        lambda: layer.limits(grid),
        what=what,
        other="that of the grid",
    )
    if violation is not None:
        raise violation.explained(functools.partial(_unmasked, layer, grid))


def _unmasked(layer: LayerCase, grid: Tensor) -> str:
    """A sentence on a mask without which rows and columns are alike; empty if there is none."""
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
