"""The invariant on ``scale``, for mechanisms that take it."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.cases import Case
from attnbench.hookspecs import hookimpl
from attnbench.invariants.baseline import Baseline
from attnbench.invariants.deriving import benign
from attnbench.specs import Invariant
from attnbench.subject import Subject


def _scale(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    usual = case.query_size**-0.5
    base.expect(
        base.run(base.inputs.replace(scale=usual)),
        f"with scale={usual:.6g}, output",
        f"no scale for {case.query_size} features",
    )
    # a power of two is exact, so that both are one computation
    doubled = base.inputs.replace(query=base.inputs.query * 2, scale=usual / 2)
    base.expect(
        base.run(doubled),
        f"with twice the query and scale={usual / 2:.6g}, output",
        "the query as it is and no scale",
    )
    # a scale of 0 is a scale; this one is as good as 0, and is not mistaken for none
    base.on(base.inputs.replace(scale=2.0**-100)).expect(
        base.run(base.inputs.replace(scale=0.0)), "with scale=0, output", "scale=2**-100"
    )


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariant on ``scale``."""
    yield Invariant(
        name="scale_multiplies_scores",
        statement="scale multiplies the scores, and is 1/√Eq where none is given.",
        check=_scale,
        cases=lambda subject: benign(subject, regimes=("normal", "tiny")),
        applies=lambda subject: None if "scale" in subject.accepts else "does not accept scale",
    )
