"""Scales of stored keys and values, among them those of blocks of zeros."""

from __future__ import annotations

import dataclasses

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
