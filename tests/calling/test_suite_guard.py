"""Code under test that changes the suite gets no verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnbench.calling.suite_guard import SuiteGuard
from attnbench.checking import runner
from attnbench.invariants.toolkit import comparisons
from attnbench.registry.catalog import registry
from tests.cli_runs import python


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


def test_adapters_are_held_before_the_file_of_a_subject_can_replace_them() -> None:
    code = (
        "from attnbench.calling.suite_guard import SuiteGuard; guard = SuiteGuard()\n"
        "from attnbench_plugins.adapters.calls.attention_call import Attention\n"
        "Attention.forward = None; print(guard.change())"
    )
    assert "Attention.forward was replaced" in python("-c", code).stdout
