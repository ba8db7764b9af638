"""The law of layers on grids that rows and columns are alike."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.cases.case import Case
from attnbench.hookspecs import hookimpl
from attnbench.invariants.toolkit.layer_calls import Look, layer_cases
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject


def _transposes(subject: Subject, case: Case) -> None:
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


def _has_grid(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    return None if subject.spec.grid else "its tokens are no grid: declare grid=True"


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The law on grids."""
    yield Invariant(
        name="transposes_with_the_grid",
        statement="Transposing a grid of tokens transposes the output.",
        check=_transposes,
        kinds=("layer",),
        cases=lambda subject: layer_cases(
            subject, regimes=("normal",), dtypes=("float64", "float32")
        ),
        applies=_has_grid,
        law=True,
    )
