"""Changes of a subject's source with which all holds."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.checking import api
from attnbench.checking.api import select_invariants
from attnbench.checking.mending.search import mends, with_mends
from attnbench.checking.outcomes import Outcome
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant
from attnbench.registry.address import parse_address
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

NAMES = ["weights_sum_to_one", "keys_permute_freely", "mask_forms_agree", "masking_equals_deleting"]

ATTENTION = """\
import torch


def attention(query, key, value, attn_mask=None):
    weights = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(weights).masked_fill(~attn_mask, -torch.inf)
    if attn_mask is not None:
        weights = weights + attn_mask
    probabilities = torch.softmax(weights, dim=-1)
    return probabilities.nan_to_num() @ value
"""


def subject_of(folder: Path, source: str, name: str = "attention as sdpa") -> Subject:
    path = folder / f"mended_{folder.name}.py"
    path.write_text(textwrap.dedent(source))
    (subject,) = resolve(f"{path}:{name}")
    return subject


def failures(subject: Subject, names: list[str]) -> list[Outcome]:
    found = [
        run_invariant(subject, invariant, PROFILES["quick"], shrink=False)
        for invariant in select_invariants(names)
    ]
    return [outcome for outcome in found if outcome.failure is not None]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("torch.softmax(weights, dim=-1)", "torch.softmax(weights, dim=-2)"),
        ("masked_fill(~attn_mask, ", "masked_fill(attn_mask, "),
        ("shape[-1] ** -0.5", "shape[-2] ** -0.5"),
    ],
)
def test_the_line_of_a_mistake_is_among_those_whose_change_mends_all(
    tmp_path: Path, right: str, wrong: str
) -> None:
    subject = subject_of(tmp_path, ATTENTION.replace(right, wrong))
    names = [*NAMES, "agrees_with_scalar_reference"]
    failed = failures(subject, names)
    assert failed
    found = mends(subject, select_invariants(names), failed)
    line = next(line for line in ATTENTION.splitlines() if right in line).strip()
    assert any(f": {line.replace(right, wrong)}\n+" in text for text in found), found


def test_a_change_with_which_something_else_fails_is_not_shown(tmp_path: Path) -> None:
    """Without its mask the function holds what fails, but not that masked keys get no weight."""
    wrong = ATTENTION.replace("weights = weights + attn_mask", "weights = weights + attn_mask.T")
    subject = subject_of(tmp_path, wrong.replace(".T", ".roll(1, -1)"))
    failed = failures(subject, ["mask_forms_agree", "masking_equals_deleting"])
    assert failed
    for text in mends(subject, select_invariants([*NAMES, "masked_slots_are_inert"]), failed):
        assert "roll" in text.partition("\n")[0]
        assert text.partition("\n")[2].endswith("weights = weights + attn_mask")


SCORING = """\
import attnbench
from torch import nn


class Product(nn.Module):
    def forward(self, query, key):
        return (query @ key.mT) * 3


def reference(module, query, key):
    product = sum(q * k for q, k in zip(query, key))
    return product * 2


SPEC = attnbench.ScoringSpec(
    name="product", make=lambda q, k: Product(), reference=reference, equal_sizes=True,
    exempt={"unit_variance": "it is not scaled"},
)
"""


def test_the_reference_is_not_changed(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, SCORING, "SPEC")
    names = ["agrees_with_scalar_reference", "weights_sum_to_one"]
    failed = failures(subject, names)
    (found,) = mends(subject, select_invariants(names), failed)
    assert "return (query @ key.mT) * 3" in found
    assert found.endswith("return (query @ key.mT) * 2")


def test_the_latest_failure_comes_once_more_before_the_last_outcome(tmp_path: Path) -> None:
    wrong = ATTENTION.replace("torch.softmax(weights, dim=-1)", "torch.softmax(weights, dim=-2)")
    subject = subject_of(tmp_path, wrong)
    failed = failures(subject, ["weights_sum_to_one"])
    passed = replace(failed[0], invariant="query_independent", status="passed", failure=None)
    invariants = select_invariants(["weights_sum_to_one"])
    first, second, last = with_mends([*failed, passed], subject, invariants, passed.invariant)
    assert (first, last) == (failed[0], passed)
    assert second.failure is not None
    assert any("dim=-1" in text for text in second.failure.mends)
    (only,) = with_mends(failed, subject, invariants, failed[0].invariant)
    assert only == second


def test_a_child_hands_over_changes_with_the_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mended_child.py"
    path.write_text(ATTENTION.replace("torch.softmax(weights, dim=-1)", "weights.softmax(dim=-2)"))
    names = ["weights_sum_to_one"]
    monkeypatch.setattr(api, "select_invariants", lambda _: select_invariants(names))
    (outcome,) = api.outcomes(
        parse_address(f"{path}:attention as sdpa"),
        profile="quick",
        device="cpu",
        dtypes=None,
        invariants=names,
        seed=None,
    )
    assert outcome.failure is not None
    assert any("weights.softmax(dim=-1)" in text for text in outcome.failure.mends)
