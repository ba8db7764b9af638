"""Cases at which something right was accused once, as thorough searches found them."""

from __future__ import annotations

from typing import Any

import pytest
from attnbench_zoo.right.scorings import SPECS
from torch import Tensor, nn

from attnbench import ScoringSpec
from attnbench.cases.case import Case
from attnbench.checking.plan import select_invariants
from attnbench.checking.runner import seeded
from attnbench.subject.lookup import resolve


class Dot(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT


ROTATED = ScoringSpec(
    name="rotated", make=lambda q, k: Dot(), equal_sizes=True, laws=("rotation_invariant",)
)
FOUND = [
    # q·W cancels before it is multiplied by large keys; the reference's W·k does not
    (
        "local_predictive",
        "agrees_with_scalar_reference",
        "b2-L2-S2-Eq2-Ek1-Ev1-float64-cpu-none-contiguous-near_overflow-s897",
    ),
    # scores of saturated units tie in float32 as in float64
    (
        "hard",
        "agrees_with_float64",
        "b4x1x3-L40-S29-Eq5-Ek1-Ev8-float32-cpu-lengths_2d-transposed-huge-s330",
    ),
    (
        "hard",
        "agrees_with_scalar_reference",
        "b4x4-L38-S34-Eq5-Ek1-Ev16-float32-cpu-none-heads-huge-s335",
    ),
    # the rounding of the scores decides which key is chosen
    (
        "forced_forward",
        "training_is_the_expectation",
        "b1x2x1-L1-S1-Eq5-Ek5-Ev5-float32-cpu-boolean-offset-far-s2680",
    ),
    # query and key are orthogonal on the grid, so that no relative rounding moves a 0
    (
        ROTATED,
        "rotation_invariant",
        "b0d-L58-S56-Eq2-Ek2-Ev1-float32-cpu-none-contiguous-normal-s855+place=near",
    ),
    (
        ROTATED,  # here in the first 8 directions that the budget draws, too
        "rotation_invariant",
        "b3x2x4-L35-S60-Eq2-Ek2-Ev4-float64-cpu-none-contiguous-normal-s915+place=near",
    ),
    # the terms of a gradient cancel; of single numbers, the cosine is a sign with a gradient of 0
    (
        SPECS["cosine"],
        "gradient_layouts_agree",
        "b1x3-L59-S30-Eq1-Ek1-Ev17-float64-cpu-boolean-transposed-normal-s685"
        "+gradient=transposed+of=scores",
    ),
    (
        SPECS["cosine"],
        "gradient_layouts_agree",
        "b0d-L9-S40-Eq1-Ek1-Ev1-float64-cpu-none-strided-normal-s314+gradient=transposed+of=scores",
    ),
    # weights of another call may be those of scores added up in another order
    (
        "dot/fused",
        "pools_values",
        "b0d-L46-S64-Eq16-Ek16-Ev16-float64-cpu-bias-contiguous-normal-s3042",
    ),
    # a cosine of zero keys has terms of 1e19, which would cancel if none were rounded
    *(
        (
            SPECS["cosine"],
            "gradients_are_finite_at_extremes",
            f"b3x1-L16-S12-Eq1-Ek1-Ev1-float16-cpu-none-contiguous-zero_keys-s{seed}+scores=own",
        )
        for seed in (0, 7, 317)
    ),
]


@pytest.mark.parametrize(("target", "name", "case"), FOUND)
def test_what_is_right_is_not_accused_at_a_rare_case(target: Any, name: str, case: str) -> None:
    (subject,), (invariant,) = resolve(target), select_invariants([name])
    with seeded():
        invariant.check(subject, Case.from_id(case))
