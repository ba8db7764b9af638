"""What a process says counts only if its canary fails, as the parent process expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.checking.api import canary_outcome
from attnbench.checking.outcomes import CANARY, KEEPS_CONTRACT, key_of
from attnbench.checking.parallel import choose_canary, run_checks, works_of
from attnbench.registry.address import parse_address
from attnbench.subject.lookup import resolve

OPTIONS = {"profile": "quick", "device": "cpu", "dtypes": None}
NAMES = (KEEPS_CONTRACT, "agrees_with_scalar_reference", "gradient_modes_agree", "layouts_agree")
SOURCE = """
import gc
import sys

calls = []


def patch(invariants=True):
    modules = [module for module in sys.modules.values() if module]
    imported = [thing for module in modules for thing in list(vars(module).values())]
    for thing in gc.get_objects() + imported:
        kind = type(thing).__name__
        if kind == "Invariant" and invariants:
            object.__setattr__(thing, "check", lambda *arguments, **keywords: None)
        if kind == "type" and thing.__name__ == "SuiteGuard":
            thing.change = lambda self: None
    {more}


def zeros(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if not calls:
        calls.append(True)
        {late}
    return value.new_zeros(*query.shape[:-1], value.shape[-1])


{early}
"""
RUNNER = """
    from attnbench.checking import api, outcomes
    api.run_invariant = lambda subject, invariant, *_, **__: outcomes.Outcome(
        subject.name, invariant.name, "passed", "12 scheduled, 4 drawn", cases=16
    )
"""
KNOWN = """
    from attnbench.checking import api, outcomes
    api.run_invariant = lambda subject, invariant, *rest, run=api.run_invariant, **more: (
        run(subject, invariant, *rest, **more)
        if "canary" in (subject.name, subject.maker.name)
        else outcomes.Outcome(subject.name, invariant.name, "passed", "12 scheduled", cases=16)
    )
"""
CHEATS = {
    "invariants and guard at a call": {"early": "", "late": "patch()", "more": ""},
    "invariants and guard at import": {"early": "patch()", "late": "pass", "more": ""},
    "the runner as well": {"early": "", "late": "patch()", "more": RUNNER.strip()},
    "all but the canary": {
        "early": "",
        "late": "patch(invariants=False)",
        "more": KNOWN.strip(),
    },
    "runner and guard": {"early": "", "late": "patch(invariants=False)", "more": RUNNER.strip()},
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_subject_that_patches_suite_and_guard_does_not_pass(cheat: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(SOURCE.format(**CHEATS[cheat]))
    works = works_of([(parse_address(f"{file}:zeros as sdpa"), "zeros")], NAMES)
    found = list(run_checks(works, OPTIONS, jobs=1, timeout_s=120, memory_gib=2))
    latest = {key_of(outcome): outcome for outcome in found}
    assert {outcome.status for outcome in latest.values()} == {"crashed"}
    assert all("changed the suite" in outcome.reason for outcome in latest.values())


@pytest.mark.parametrize("target", ["scaled_dot", "multi_head", "sliding_window_attention"])
def test_a_canary_of_each_kind_fails(target: str) -> None:
    (subject, *_) = resolve(target)
    for name in {choose_canary(NAMES) for _ in range(20)} - {None}:
        assert name is not None
        outcome = canary_outcome(subject, name)
        assert (outcome.subject, outcome.status) == (CANARY, "failed"), outcome.reason
