"""Scales of stored keys and values, among them those of blocks of zeros."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from attnbench_zoo.mutants.storage import STORED, Stored
from torch import Tensor

import attnbench


class ZeroIsNoScale(Stored):
    """A scale of 0 is taken for none."""

    def restore(self, stored: Tensor, scale: Tensor | None) -> Tensor:
        """Keys or values as they were, unless they were zeros."""
        if scale is None:
            return stored
        return super().restore(stored, torch.where(scale == 0, 1.0, scale))


def test_a_scale_of_zero_restores_zeros() -> None:
    wrong = dataclasses.replace(STORED.spec, name="zero_is_no_scale", make=ZeroIsNoScale)
    right, found = (
        attnbench.check(spec, profile="quick", invariants=["scales_restore_keys_and_values"])
        for spec in (STORED.spec, wrong)
    )
    assert right.ok
    (outcome,) = found.outcomes
    assert outcome.status == "failed"
    assert "with a scale of 0 by" in outcome.reason


class OfTheFirstItem(Stored):
    """The scale of the first item is that of all."""

    def restore(self, stored: Tensor, scale: Tensor | None) -> Tensor:
        """Keys or values as they were, of the first item."""
        if scale is not None and scale.dim() == stored.dim() and scale.shape[-2] < stored.shape[-2]:
            scale = scale[:1]
        return super().restore(stored, scale)


def test_each_item_has_its_own_scale() -> None:
    wrong = dataclasses.replace(STORED.spec, name="of_the_first_item", make=OfTheFirstItem)
    (outcome,) = attnbench.check(
        wrong, profile="quick", invariants=["scales_restore_keys_and_values"]
    ).outcomes
    assert outcome.status == "failed"
    assert "scale by item" in outcome.reason


class ScaleAfterTheMask(Stored):
    """The keys' scale multiplies scores to which a floating mask was added."""

    scale: Tensor | None = None

    def forward(self, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
        """The output and the log-sum-exp."""
        self.scale = options.pop("k_scale", None)
        return super().forward(*tensors, **options)

    def add(self, scores: Tensor, mask: Tensor | None, head_offset: int) -> Tensor:
        """Scores with the mask, times the scale."""
        scores = super().add(scores, mask, head_offset)
        return scores if self.scale is None else scores * self.scale.to(scores).mT


def test_a_floating_mask_is_not_scaled_as_the_keys_are() -> None:
    spec = dataclasses.replace(
        STORED.spec,
        name="scale_after_the_mask",
        make=ScaleAfterTheMask,
        accepts=("is_causal", "k_scale", "v_scale"),
    )
    (outcome,) = attnbench.check(
        spec, profile="quick", invariants=["scales_restore_keys_and_values"]
    ).outcomes
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert "-bias-" in str(outcome.failure.case)
