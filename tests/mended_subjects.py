"""Subjects whose source is changed, and what is found for them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from attnbench.cases.case import Case
from attnbench.checking.api import select_invariants
from attnbench.checking.mending.approval import Trial, holds
from attnbench.checking.mending.running_code import RunLines
from attnbench.checking.mending.search import mends
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

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


def found_for(subject: Subject, names: list[str], *, beside: list[str] | None = None) -> list[str]:
    """The changes that are found where some of the named invariants fail, and all should hold."""
    failing = []
    for invariant in select_invariants(names):
        outcome = run_invariant(subject, invariant, PROFILES["quick"], shrink=False)
        if outcome.counterexample is not None:
            failing.append((invariant, Case.from_id(outcome.counterexample)))
    assert failing
    return list(mends(subject, select_invariants(names), failing, beside=beside or ()))


def failing_of(subject: Subject, names: list[str]) -> tuple[list[Trial], RunLines]:
    """The named invariants, each with a case at which it fails, and the lines that ran."""
    failing, lines = [], RunLines(set(), set())
    for invariant in select_invariants(names):
        outcome = run_invariant(subject, invariant, PROFILES["quick"], shrink=False)
        failing.append((invariant, Case.from_id(str(outcome.counterexample))))
        with lines.watched():
            assert holds(subject, *failing[-1]) is False
    return failing, lines
