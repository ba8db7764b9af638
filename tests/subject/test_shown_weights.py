"""Weights that the identity as value shows."""

from __future__ import annotations

import pytest
import torch
from attnbench_zoo.right.attention import ATTENTION, Attention

from attnbench import Case
from attnbench.subject.lookup import resolve
from tests.invariant_runs import mutant


@pytest.mark.parametrize("mask", ["none", "boolean", "floating", "padding"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_the_identity_shows_the_weights_in_blocks_as_wide_as_the_value(
    lead: tuple[int, ...], mask: str
) -> None:
    (silent,), (telling,) = (
        resolve(mutant(Attention, accepts=("valid_lens",))),
        resolve(ATTENTION),
    )
    module, inputs = silent.build(Case(lead, 4, 7, 3, 3, 2, dtype="float64", mask=mask).legal())
    shown, told = silent.weights(module, inputs), telling.weights(module, inputs)
    assert shown is not None
    assert told is not None
    torch.testing.assert_close(shown, told)
