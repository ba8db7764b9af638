from __future__ import annotations

from attnbench_zoo.mutants.backward import ConstantWeights, SecondDerivativesOfConstants
from attnbench_zoo.twins.attention import ATTENTION, Attention
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.invariants.derivatives import second_derivatives
from tests.invariant_runs import by_name, mutant, run

RIGHT = by_name(second_derivatives)["second_derivatives_are_right_or_refused"]


class _Once(ConstantWeights):
    backward = staticmethod(once_differentiable(ConstantWeights.backward))


class Refused(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return _Once.apply(hidden).masked_fill(~allowed, 0.0)


def test_what_differentiates_twice_by_constants_is_found() -> None:
    outcome = run(mutant(SecondDerivativesOfConstants), RIGHT)
    assert outcome.status == "failed"
    assert "the slope of (gradient * g).sum() along a random direction of" in outcome.reason


def test_right_second_derivatives_and_refused_ones_pass() -> None:
    for spec in (ATTENTION.spec, mutant(Refused), "additive", "additive/factorised"):
        outcome = run(spec, RIGHT)
        assert outcome.status == "passed", outcome.reason
