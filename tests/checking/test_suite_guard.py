"""Code under test that changes the suite gets no verdict."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnbench
from attnbench import MechanismSpec
from attnbench.checking import runner
from attnbench.checking.suite_guard import SuiteGuard
from attnbench.invariants.toolkit import comparisons
from attnbench.registry.catalog import registry

NAMES = ["keeps_the_contract", "agrees_with_float64"]


def nothing(*args: object, **keywords: object) -> None:
    """What a cheat puts in the place of a check."""


def patch_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    for invariant in registry().invariants():
        monkeypatch.setitem(vars(invariant), "check", nothing)


def patch_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons.agree_within, "__code__", nothing.__code__)


PATCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the invariant": patch_invariants,
    "the code of attnbench.invariants.toolkit.comparisons.agree_within": patch_code,
    "runner.skip_reason": lambda monkeypatch: monkeypatch.setattr(runner, "skip_reason", nothing),
    "torch.equal": lambda monkeypatch: monkeypatch.setattr(torch, "equal", nothing),
}


@pytest.mark.parametrize("what", PATCHES)
def test_what_replaces_a_part_of_the_suite_is_named(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = SuiteGuard()
    assert guard.change() is None
    with monkeypatch.context() as patching:
        PATCHES[what](patching)
        change = guard.change()
    assert change is not None
    assert what in change
    assert guard.change() is None


def test_a_subject_that_replaces_checks_when_it_is_called_crashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Patching(torch.nn.Module):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            patch_invariants(monkeypatch)
            return value.new_zeros(*query.shape[:-1], value.shape[-1])

    spec = MechanismSpec(name="patching", make=lambda q, k, v: Patching(), equal_sizes=True)
    report = attnbench.check(spec, profile="quick", invariants=NAMES)
    monkeypatch.undo()
    assert [outcome.status for outcome in report.outcomes] == ["crashed", "crashed"]
    assert "changed the suite" in report.outcomes[0].reason


def test_a_subject_that_changes_nothing_of_it_is_checked_as_ever() -> None:
    guard = SuiteGuard()
    functools.partial(nothing)()
    report = attnbench.check("scaled_dot", profile="quick", invariants=["weights_sum_to_one"])
    assert report.ok
    assert guard.change() is None
