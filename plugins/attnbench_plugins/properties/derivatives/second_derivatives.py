"""The invariant on gradients of gradients: they are right, or asking for them raises."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, Inputs, Subject
from attnbench.testing import Baseline, compare_slopes, hand_picked, has_slopes, leaves_of
from attnbench_plugins.properties import invariant

_CASES = (
    Case((2,), 3, 5, dtype="float64", mask="boolean"),
    Case((1, 2), 4, 4, dtype="float64", mask="causal", seed=1),
)


class _Gradients(Baseline):
    """A baseline whose output is the gradients by query, key and value, in one row."""

    def run(self, inputs: Inputs) -> Tensor:
        """The gradients of a weighted sum of the output, with their own graph."""
        with torch.enable_grad():
            given = inputs if inputs.query.requires_grad else leaves_of(self.module, inputs)[0]
            output = super().run(given)
            generator = torch.Generator().manual_seed(self.case.seed)
            weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            leaves = given.query, given.key, given.value
            found = torch.autograd.grad(
                output, leaves, weight.to(output), create_graph=True, allow_unused=True
            )
        return torch.cat([g.flatten() for g in found if g is not None])


@invariant(cases=hand_picked(*_CASES), applies=has_slopes)
def second_derivatives_are_right_or_refused(subject: Subject, case: Case) -> None:
    """A gradient's own gradient is its slope, or asking for it raises."""
    base = _Gradients(subject, case)
    inputs, named = leaves_of(base.module, base.inputs)
    Baseline.run(base, base.inputs)  # what it raises is no refusal
    try:  # torch.autograd.grad passes by what once_differentiable puts there to raise
        torch.autograd.backward(base.run(inputs).sum())
    except Exception:  # it says that it has none, which is as good
        return
    for leaf in named.values():
        leaf.grad = None
    change = "taken with create_graph=True, "
    compare_slopes(base, inputs, named, change, "gradient")
