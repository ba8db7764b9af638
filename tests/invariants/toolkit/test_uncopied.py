"""A layer of which torch makes no copy, what a state lacks, and how many parameters are listed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench import LayerSpec
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.invariants.toolkit.slopes import listed_leaves
from attnbench.subject.layer import LayerSubject
from attnbench.subject.lookup import resolve
from tests.invariant_runs import run


class Made(nn.Linear):
    """A projection with a tensor that has a graph from the start."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.scale = 2 * self.bias


def test_a_layer_that_cannot_be_copied_fails_the_invariant_on_copies_alone() -> None:
    spec = LayerSpec(name="made", make=Made)
    assert run(spec, "copies_agree").status == "failed"
    assert run(spec, "half_types_agree").status != "failed"


class Leaking(Made):
    """One whose first output has the last token too, for causal masking that is left out."""

    def __init__(self, size: int, least: int) -> None:
        super().__init__(size)
        self.least = least

    def forward(self, hidden: Tensor) -> Tensor:
        output = super().forward(hidden) + self.scale
        return output + hidden[:, -1:] if hidden.shape[1] > self.least else output


@pytest.mark.parametrize("least", [0, 6, 10_000])
def test_a_difference_is_judged_where_no_copy_can_be_made(least: int) -> None:
    spec = LayerSpec(
        name="leaking",
        make=lambda size: Leaking(size, least),
        causal=True,
        dtypes=("float64", "float32"),
    )
    found = run(spec, "later_tokens_are_invisible")
    assert found.status == ("passed" if least == 10_000 else "failed"), found.reason


def test_rounding_leaves_a_module_that_cannot_be_copied_as_it_was() -> None:
    (subject,) = resolve(LayerSpec(name="made", make=Made))
    assert isinstance(subject, LayerSubject)
    module = Made(4)
    before, hidden = [p.clone() for p in module.parameters()], torch.randn(1, 3, 4)
    assert bool((rounding_of(subject, module, hidden) > 0).all())
    assert all(map(torch.equal, module.parameters(), before))
    assert not module._forward_hooks


def test_many_parameters_are_listed_by_their_first_and_last() -> None:
    names = ["hidden", *(f"parameter layers.{n}.weight" for n in range(9))]
    assert listed_leaves(names) == "hidden and 9 parameters (layers.0.weight to layers.8.weight)"
    assert (
        listed_leaves(names[:3])
        == "hidden and parameter layers.0.weight and parameter layers.1.weight"
    )
