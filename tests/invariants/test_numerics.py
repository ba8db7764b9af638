from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import Attention
from torch import Tensor, nn

from attnbench import ScoringSpec, adapters
from tests.invariant_runs import mutant, run


class Dot(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query.float() @ key.float().mT if query.dtype.itemsize == 2 else query @ key.mT


def _dot(reference: Any) -> ScoringSpec:
    return ScoringSpec(
        name="dot_by_floats",
        make=lambda query_size, key_size: Dot(),
        formula="q·k",
        equal_sizes=True,
        reference=reference,
    )


def _product(_module: nn.Module, q: list[float], k: list[float]) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True))


@pytest.mark.parametrize(
    "reference",
    [
        lambda module, q, k: 2 * _product(module, q, k),
        lambda module, q, k: float("nan"),
    ],
    ids=["twice", "nan"],
)
def test_references_that_disagree_are_a_finding_of_their_own(reference: Any) -> None:
    invariant = "agrees_with_scalar_reference"
    assert run(_dot(_product), invariant).status == "passed"
    wrong = run(_dot(reference), invariant)
    assert wrong.status == "failed"
    assert "dot_by_floats run in float64 is not what its reference= computes" in wrong.reason
    assert "q·k" in wrong.reason


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, *, rescaled: bool) -> Tensor:
    """Attention without masks, in blocks of 100 keys with a running maximum, in float64."""
    dtype = query.dtype
    query, key, value = query.double(), key.double(), value.double()
    top = query.new_full((*query.shape[:-1], 1), -torch.inf)
    total, mixed = torch.zeros_like(top), query.new_zeros(*query.shape[:-1], value.shape[-1])
    for keys, values in zip(key.split(100, -2), value.split(100, -2), strict=True):
        scores = query @ keys.mT * query.shape[-1] ** -0.5
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink = (top - new).exp() if rescaled else torch.ones_like(top)
        total = total * shrink + (scores - new).exp().sum(-1, keepdim=True)
        mixed = mixed * shrink + (scores - new).exp() @ values
        top = new
    return (mixed / total).to(dtype)


@pytest.mark.parametrize("rescaled", [True, False])
def test_blocks_of_keys_are_seen_also_of_what_takes_no_mask(rescaled: bool) -> None:
    spec = adapters.sdpa(partial(_in_blocks, rescaled=rescaled), name="in_blocks")
    outcome = run(spec, "agrees_with_scalar_reference")
    assert outcome.status == ("passed" if rescaled else "failed"), outcome.reason


class Linear(Attention):
    """Weights are the scores themselves, computed wide: an output may be out of float16's range."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *more: Any, **given: Any) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        return (query.to(wide) @ key.to(wide).mT @ value.to(wide)).to(query.dtype)


def test_an_output_that_is_larger_than_float16_holds_is_no_overflow() -> None:
    def rows(module: Any, query: Any, key: Any, value: Any, allowed: Any) -> Any:
        weights = [[sum(a * b for a, b in zip(q, k, strict=True)) for k in key] for q in query]
        return [
            [
                sum(w * v for w, v in zip(row, column, strict=True))
                for column in zip(*value, strict=True)
            ]
            for row in weights
        ]

    spec = mutant(Linear, reference=rows, accepts=(), laws=(), conventions={"masks": ()})
    for name in ("finite_at_extremes", "agrees_with_scalar_reference"):
        assert run(spec, name).status == "passed"


def test_the_reference_of_an_adapter_is_not_that_of_a_function_with_keys_of_its_own() -> None:
    def quiet(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query * query.shape[-1] ** -0.5) @ key.mT
        top = scores.amax(-1, keepdim=True).clamp_min(0)
        powers = (scores - top).exp()
        return powers / (powers.sum(-1, keepdim=True) + (-top).exp()) @ value

    name = "agrees_with_scalar_reference"
    spec = adapters.sdpa(quiet, name="quiet", conventions={"extra_keys": 1})
    outcome = run(spec, name)
    assert outcome.status == "skipped"
    assert "an adapter's reference has none" in outcome.reason
    assert run(adapters.sdpa(quiet), name).status == "failed"
