from __future__ import annotations

import torch
from attnbench_zoo.right.attention import Attention
from torch import Tensor, nn

from attnbench import Case, MechanismSpec
from attnbench.invariants import pooling
from attnbench.subject.lookup import resolve
from tests.invariant_runs import by_name, mutant, run


def test_a_subject_without_weights_skips_the_invariants_on_weights_with_that_reason() -> None:
    blind = mutant(Attention, accepts=(), laws=())
    outcome = run(blind, "weights_sum_to_one")
    assert outcome.status == "skipped"
    assert outcome.reason == "neither hands back weights nor declares pools_values"


def test_the_invariants_on_pooling_are_skipped_where_pools_values_is_not_declared() -> None:
    blind = mutant(Attention, laws=())
    for invariant in by_name(pooling).values():
        outcome = run(blind, invariant)
        assert outcome.status == "skipped", invariant.name
        assert "declare" in outcome.reason


def test_weights_of_another_call_may_be_those_of_scores_added_up_in_another_order() -> None:
    case = "b0d-L46-S64-Eq16-Ek16-Ev16-float64-cpu-bias-contiguous-normal-s3042"
    (subject,) = resolve("dot/fused")
    by_name(pooling)["pools_values"].check(subject, Case.from_id(case))


class StickBreaking(nn.Module):
    """Right: each key takes a share of what the keys after it leave, so the first gets little."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(wide) @ key.to(wide).mT
        keep = nn.functional.logsigmoid(-scores)
        if attn_mask is not None:
            keep = keep.masked_fill(~attn_mask, 0.0)
        left = nn.functional.pad(keep, (0, 1)).flip(-1).cumsum(-1).flip(-1)[..., 1:]
        weights = (nn.functional.logsigmoid(scores) + left).exp()
        if attn_mask is not None:
            weights = weights.masked_fill(~attn_mask, 0.0)
        return (weights @ value.to(wide)).to(query.dtype)


def test_a_key_whose_weight_is_too_small_for_the_dtype_is_no_dropped_key() -> None:
    spec = MechanismSpec(
        name="sticks",
        make=lambda *_: StickBreaking(),
        equal_sizes=True,
        conventions={"masks": ("boolean",)},
    )
    outcome = run(spec, "every_attendable_key_matters")
    assert outcome.status == "passed", outcome.reason
