from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_plugins.laws import vectors
from torch import Tensor, nn

from attnbench import KernelSpec, ScoringSpec
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve
from tests.invariant_runs import by_name, case_of, run


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize == 2 else tensor


def _spec(score: Any, *declared: str) -> ScoringSpec:
    class Scoring(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            result: Tensor = score(_wide(query), _wide(key))
            return result

    return ScoringSpec(
        name="declared", make=lambda q, k: Scoring(), equal_sizes=True, laws=declared
    )


def dot(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT


def expanded_distance(query: Tensor, key: Tensor) -> Tensor:
    lengths = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
    return query @ key.mT - 0.5 * lengths


@pytest.mark.parametrize(
    "case",
    [
        "b0d-L58-S56-Eq2-Ek2-Ev1-float32-cpu-none-contiguous-normal-s855+place=near",
        # the first 8 directions that the budget draws cancel there, too
        "b3x2x4-L35-S60-Eq2-Ek2-Ev4-float64-cpu-none-contiguous-normal-s915+place=near",
    ],
)
def test_products_that_cancel_exactly_may_be_rounded_where_they_are_rotated(case: str) -> None:
    """There query and key are orthogonal on the grid, so that no relative rounding moves a 0."""
    (subject,) = resolve(_spec(dot, "rotation_invariant"))
    by_name(vectors)["rotation_invariant"].check(subject, Case.from_id(case))


def test_a_law_that_is_not_declared_is_skipped() -> None:
    outcome = run(_spec(dot), "translation_invariant")
    assert (outcome.status, outcome.reason) == ("skipped", "law not declared")
    assert outcome.undeclared


def test_a_law_that_is_skipped_for_another_reason_is_not_taken_for_undeclared() -> None:
    spec = replace(_spec(dot), exempt={"translation_invariant": "law not declared"})
    outcome = run(spec, "translation_invariant")
    assert (outcome.status, outcome.reason) == ("skipped", "exempt: law not declared")
    assert not outcome.undeclared


def test_the_expanded_distance_is_found_far_from_the_origin_and_the_message_says_so() -> None:
    wrong = run(_spec(expanded_distance, "translation_invariant"), "translation_invariant")
    assert "query and key both moved by" in wrong.reason
    assert "the call at the origin has" in wrong.reason


def test_a_kernel_is_held_to_the_laws_of_its_output() -> None:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Tensor:
        bandwidth = (2 * query.shape[-1]) ** -0.5
        scores = bandwidth * expanded_distance(_wide(query), _wide(key))
        if masks.get("attn_mask") is not None:
            scores = scores.masked_fill(~masks["attn_mask"], -torch.inf)
        output: Tensor = (scores.softmax(-1) @ _wide(value)).to(query.dtype)
        return output

    kernel = KernelSpec(name="expanded", scoring="gaussian", attend=attend)
    wrong = run(kernel, "translation_invariant")
    assert wrong.status == "failed"
    assert case_of(wrong).dtype in ("float32", "float64", "bfloat16", "float16")
    assert run(kernel, "monotone_in_distance").status == "skipped"
