"""The law of layers on grids that rows and columns are alike."""

from __future__ import annotations

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import Look, layer_cases
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject


def _has_grid(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    return None if subject.spec.grid else "its tokens are no grid: declare grid=True"


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, regimes=("normal",), dtypes=("float64", "float32")),
    applies=_has_grid,
    law=True,
)
def transposes_with_the_grid(subject: Subject, case: Case) -> None:
    """Transposing a grid of tokens transposes the output."""
    look = Look(subject, case)
    rows, columns = 1 + look.choose(5), 1 + look.choose(5)
    shape = (case.lead[0], rows, columns, case.query_size)
    grid = look.other(look.hidden.new_zeros(shape))
    expected = look.run(grid)
    got = look.run(grid.transpose(1, 2).contiguous()).transpose(1, 2)
    found = look.differs(
        got, expected, look.real(grid), lambda: rounding_of(look.subject, look.module, grid)
    )
    if found is not None:
        told = f"of the transposed grid of {rows} x {columns}, transposed back, output"
        look.accuse(found, got, expected, told, "that of the grid")


attnbench_invariants = hook_of(__name__)
