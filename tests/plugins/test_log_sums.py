"""What comes with the output is recognised, and a wrong log-sum-exp is named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_zoo.right.storage import STORED, Stored
from torch import Tensor

import attnbench
from attnbench.adapters import flash, sdpa
from attnbench.errors import SpecError
from tests.attention_functions import with_gradient
from tests.invariant_runs import run

SUMS = "log_sums_are_those_of_the_scores"


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """``(B, L, H, E)``, with a log-sum-exp ``(B, H, L)``."""
    query, key, value = (t.transpose(1, 2) for t in (q, k, v))
    output, lse = Stored()(query, key, value, is_causal=causal)
    return output.transpose(1, 2), lse


def test_an_adapter_sees_that_a_log_sum_comes_with_the_output() -> None:
    spec = flash(attend)
    assert spec.returns == ("output", "lse")
    assert "splits_merge" in spec.laws
    assert [run(spec, name).status for name in (SUMS, "splits_merge")] == ["passed"] * 2


def test_weights_are_no_log_sum() -> None:
    def weighed(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = (query @ key.mT).softmax(-1)
        return weights @ value, weights

    assert sdpa(weighed).returns == ("output",)


def test_a_base_that_is_declared_is_right() -> None:
    class InBaseTwo(Stored):
        def log_sums(self, scores: Tensor, weights: Tensor) -> Tensor:
            return super().log_sums(scores, weights) / math.log(2.0)

    given: Any = {**STORED.conventions, "lse_base": 2}
    spec = replace(STORED, make=InBaseTwo, conventions=given)
    assert [run(spec, name).status for name in (SUMS, "splits_merge")] == ["passed"] * 2


def refused(gradient: Tensor) -> Tensor:
    raise NotImplementedError("no gradient of the log-sum-exp")


@pytest.mark.parametrize(("back", "failures"), [(refused, 0), (torch.zeros_like, 2)])
def test_a_gradient_that_leaves_out_the_log_sums_fails_and_one_that_is_refused_does_not(
    back: Any, failures: int
) -> None:
    """Outputs and log-sums merge, so that a loss of merged parts alone goes wrong."""

    def bending(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        output, lse = attend(q, k, v)
        return output, with_gradient(back)(lse)

    names = ("log_sums_take_gradients", "splits_merge")
    statuses = [run(flash(bending), name).status for name in names]
    assert statuses.count("failed") == failures


def test_another_shape_is_named() -> None:
    class Kept(Stored):
        def log_sums(self, scores: Tensor, weights: Tensor) -> Tensor:
            return super().log_sums(scores, weights).unsqueeze(-1)

    assert "one number a query" in run(replace(STORED, make=Kept), SUMS).reason


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_option_that_no_mask_may_go_with_is_given_alone(forgotten: bool) -> None:
    class Capped(Stored):
        cap: float | None = None

        def forward(self, *given: Any, softcap: float | None = None, **more: Any) -> Any:
            if softcap and more.get("attn_mask") is not None:
                raise NotImplementedError("softcap with a mask")
            self.cap = softcap
            return super().forward(*given, **more)

        def scores(self, query: Tensor, key: Tensor) -> Tensor:
            scores = super().scores(query, key)
            return self.cap * (scores / self.cap).tanh() if self.cap else scores

        def log_sums(self, scores: Tensor, weights: Tensor) -> Tensor:
            if self.cap and forgotten:
                scores = self.cap * (scores / self.cap).atanh()
            return super().log_sums(scores, weights)

    spec = replace(STORED, make=Capped, accepts=("is_causal", "softcap"), reference=None)
    found = run(spec, SUMS)
    assert found.status == ("failed" if forgotten else "passed"), found.reason
    assert "raised" not in found.reason


def test_what_is_returned_is_one_of_three() -> None:
    with pytest.raises(SpecError, match="returns should be one of"):
        attnbench.MechanismSpec(name="x", make=Stored, returns=("lse",))
