"""The invariant on ``scale``, for mechanisms that take it."""

from __future__ import annotations

import torch

from attnbench import Case, Inputs, Subject
from attnbench.testing import Baseline, accepts, benign, has_gradients, leaves_of, same_gradients
from attnbench_plugins.properties import invariant


@invariant(
    cases=benign,
    regimes=("normal", "tiny"),
    variants={"gradients": (False, True)},
    beyond=(Case((1,), 3, 150), Case((1,), 2, 520), Case((1,), 2, 3, 257, 257)),
    applies=accepts("scale"),
)
def scale_multiplies_scores(subject: Subject, case: Case) -> None:
    """scale, of either sign or 0, multiplies the scores, and is 1/√Eq where none is given."""
    base = Baseline(subject, case)
    usual = case.query_size**-0.5
    base.expect(
        base.run(base.inputs.replace(scale=usual)),
        f"with scale={usual:.6g}, output",
        f"no scale for {case.query_size} features",
    )

    def doubled(inputs: Inputs) -> Inputs:
        """The equivalent inputs: a power of two is exact, so both computations are equal."""
        return inputs.replace(query=inputs.query * 2, scale=usual / 2)

    what, other = f"with twice the query and scale={usual / 2:.6g}", "the query as it is"
    with torch.set_grad_enabled(case.variant("gradients", False)):
        base.expect(base.run(doubled(base.inputs)), f"{what}, output", other)
    if has_gradients(subject, case):
        inputs, leaves = leaves_of(base.module, base.inputs)
        weight = base.other(base.output)
        got, expected = base.run(doubled(inputs)), base.run(inputs)
        same_gradients(got, expected, leaves, weight, what, other, eps=base.eps)
    one = base.inputs.replace(query=base.inputs.query * usual, scale=1.0)
    base.expect(base.run(one), f"with scale=1 and the query times {usual:.6g}, output", "no scale")
    turned = base.on(base.inputs.replace(query=-base.inputs.query, scale=usual / 2))
    turned.expect(
        base.run(base.inputs.replace(scale=-usual / 2)),
        f"with scale={-usual / 2:.6g}, output",
        f"minus the query and scale={usual / 2:.6g}",
    )
    # a scale of 0 is a scale; this one is as good as 0, and is not mistaken for none
    base.on(base.inputs.replace(scale=2.0**-100)).expect(
        base.run(base.inputs.replace(scale=0.0)), "with scale=0, output", "scale=2**-100"
    )
