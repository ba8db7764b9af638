"""Right layers are not accused, and what cannot be judged is skipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_plugins.properties.layers import (
    dependence,
    layer_gradients,
    layer_runs,
    module_state,
    padding,
)
from attnbench_zoo.right.layers import ENCODING, STATIC
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from tests.invariant_runs import by_name, run

INVARIANTS = by_name(padding, dependence, layer_gradients, layer_runs, module_state)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_right_layer_is_not_accused(invariant: str) -> None:
    found = run(ENCODING, invariant, shrink=True)
    assert found.status in ("passed", "skipped"), found.reason


def in_steps_of(step: int) -> Callable[[int], int]:
    return lambda size: max(step, size // step * step)


class OfOneSize(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


class Normed(OfOneSize):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.RMSNorm(size)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(self.norm(hidden))


class FunctionallyNormed(OfOneSize):
    def forward(self, hidden: Tensor) -> Tensor:
        hidden = nn.functional.layer_norm(hidden, hidden.shape[-1:])
        pairs = super().forward(hidden).unflatten(-1, (-1, 2))
        return nn.functional.rms_norm(pairs, (2,)).flatten(2)


class PreNorm(OfOneSize):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        return hidden + self.linear(self.norm(hidden)).cumsum(1)


class Dilated(OfOneSize):
    """A token and the one eight places before it."""

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        earlier = nn.functional.pad(hidden, (0, 0, 8, 0))[:, : hidden.shape[1]]
        return hidden + super().forward(earlier)


class PostNorm(OfOneSize):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + super().forward(hidden))


class Fourier(OfOneSize):
    """Mixes tokens and features in float32, whatever it is given."""

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = torch.fft.fft2(super().forward(hidden).float()).real if hidden.numel() else hidden
        return hidden + mixed.to(hidden.dtype)


class AloneOrAmongOthers(nn.Module):
    """A token sees itself only where it sees no other one, as in Reformer."""

    def __init__(self, size: int, first: float = -5e4) -> None:
        super().__init__()
        self.project = nn.Linear(size, 2 * size)
        self.first = first

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        query, value = self.project(hidden).chunk(2, -1)
        scores = query @ query.tanh().mT + self.first * torch.eye(length)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1) @ value


class Normalised(nn.Module):
    """A batch norm over the tokens, which in training takes two values or more."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, hidden: Tensor) -> Tensor:
        normalised: Tensor = self.norm(hidden.mT).mT
        return normalised


class Keeping(nn.Linear):
    """A projection that keeps its output, with its graph."""

    def forward(self, hidden: Tensor) -> Tensor:
        self.last = super().forward(hidden)
        return self.last


DEPENDS = ("outputs_depend_on_their_token",)
CACHED = {
    "causal": True,
    "accepts": ("cache",),
    "cache": CacheSpec(new=lambda module, batch_size: []),
}
RIGHT: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "one size": (OfOneSize, {"sizes": lambda size: 40}, ("copies_agree", "items_are_independent")),
    "a variable epsilon": (Normed, {"sizes": in_steps_of(4)}, ("agrees_with_float64",)),
    "tokens that are skipped": (Dilated, CACHED, DEPENDS),
    "a norm of few features, which leaves nothing to remember": (PreNorm, CACHED, DEPENDS),
    "a norm of one feature, which leaves nothing to depend on": (PostNorm, {}, DEPENDS),
    "rounding by layout in float64, as it computes in float32": (Fourier, {}, ("layouts_agree",)),
    "a token that sees itself alone": (AloneOrAmongOthers, {"causal": True}, DEPENDS),
    "a norm of a batch": (Normalised, {}, ("inputs_are_unchanged", "dropout_is_drawn_once")),
    "a graph that is kept": (lambda size: Keeping(size, size), {}, ("autocast_agrees",)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_by_design_is_not_accused(name: str) -> None:
    make, fields, invariants = RIGHT[name]
    for invariant in invariants:
        found = run(LayerSpec(name="right", make=make, **fields), invariant, shrink=True)
        assert found.status == "passed", found.reason


def test_norms_of_two_features_are_not_accused() -> None:
    spec = LayerSpec(name="twos", make=FunctionallyNormed, sizes=in_steps_of(2))
    names = ["agrees_with_float64", "half_types_agree"]
    report = attnbench.check(spec, invariants=names)
    assert [o.status for o in report.outcomes] == ["passed"] * 2, str(report)


@pytest.mark.parametrize("missing", ["select", "crop"])
def test_a_cache_without_an_operation_still_counts_its_slots(missing: str) -> None:
    assert STATIC.cache is not None
    cache = replace(STATIC.cache, **{missing: None})
    found = run(replace(STATIC, cache=cache), "cache_length_counts_slots")
    assert found.status == "passed", found.reason


class NoNumber(nn.Module):
    """Gives NaN for two tokens or more."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * float("nan") if hidden.shape[1] > 1 else hidden


def test_nan_in_both_of_two_runs_is_no_difference_between_them() -> None:
    for dtypes in (("float32", "float64"), ("bfloat16",)):
        spec = LayerSpec(name="no_number", make=lambda size: NoNumber(), dtypes=dtypes)
        for invariant in ("layer_calls_leave_no_trace", "items_are_independent"):
            assert run(spec, invariant).status == "passed"
        assert run(spec, "keeps_the_contract").status == "failed"


class Classified(Normed):
    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat([hidden.new_zeros(len(hidden), 1, hidden.shape[-1]), hidden[:, 1:]], 1)


def test_a_layer_that_gives_its_class_token_for_no_tokens_refuses_them() -> None:
    outcome = run(LayerSpec(name="classified", make=Classified), "empty_calls_are_harmless")
    assert "it refuses a call on no tokens (classified returned output" in outcome.reason
