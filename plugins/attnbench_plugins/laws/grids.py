"""The law of layers on grids that rows and columns are alike."""

from __future__ import annotations

import functools

from attnbench.testing import LayerCase, LayerSubject, layer_invariant


def _has_grid(subject: LayerSubject) -> str | None:
    return None if subject.spec.grid else "its tokens are no grid: declare grid=True"


@layer_invariant(
    hint="rows and columns of the grid are exchanged, or treated unlike, somewhere",
    regimes=("normal",),
    dtypes=("float64", "float32"),
    applies=_has_grid,
    law=True,
)
def transposes_with_the_grid(layer: LayerCase) -> None:
    """Transposing a grid of tokens transposes the output."""
    rows, columns = 1 + layer.choose(5), 1 + layer.choose(5)
    shape = (layer.case.lead[0], rows, columns, layer.case.query_size)
    grid = layer.other(layer.hidden.new_zeros(shape))
    expected = layer.run(grid)
    got = layer.run(grid.transpose(1, 2).contiguous()).transpose(1, 2)
    what = f"of the transposed grid of {rows} x {columns}, transposed back, output"
    limits = functools.partial(layer.limits, grid)
    layer.expect(got, expected, layer.real(grid), what, "that of the grid", allowed=limits)
