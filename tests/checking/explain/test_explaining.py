"""An explainer of a plugin adds clues, and is cut off or noted where it raises or hangs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import attnbench
from attnbench.cases.case import Case
from attnbench.checking import api
from attnbench.checking.api import explained, explanations_of
from attnbench.checking.explain import explaining
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.registry.address import parse_address
from attnbench.registry.discovery import call_hooks, explainer_of
from attnbench.subject.lookup import resolve

FOUND = Failure(invariant="weights_sum_to_one", case=Case().id)
FAILED = Outcome("scaled_dot", "weights_sum_to_one", "failed", "off", failure=FOUND)
TARGET = parse_address("scaled_dot")
CLUE = attnbench.Clue(text="the last key is lost", file="mine.py", line=3)


def explains(*clues: Any) -> Any:
    hook = attnbench.hookimpl(lambda subject, failures: clues)
    hook.__name__ = "attnbench_explain"
    return SimpleNamespace(attnbench_explain=hook)


def raising(subject: Any, failures: Any) -> Any:
    raise ValueError("no idea\nat all")


def test_a_plugin_may_explain_only_and_is_called_with_the_failures() -> None:
    namespace = explains(CLUE)
    assert call_hooks(namespace) == ()
    explain = explainer_of(namespace)
    assert explain is not None
    assert explain(None, [FOUND]) == [(CLUE,)]


@pytest.mark.parametrize(
    ("explain", "clues", "note"),
    [
        (lambda subject, failures: [[CLUE]], (CLUE,), ""),
        (raising, (), "the explainer of plugin mine raised ValueError: no idea"),
        (lambda subject, failures: [["no"]], (), "the explainer of plugin mine raised PluginError"),
    ],
)
def test_what_an_explainer_gives_or_raises(
    explain: Any, clues: Any, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = SimpleNamespace(name="mine", explain=explain)
    monkeypatch.setattr(api, "explaining_plugins", lambda built_in: [plugin])
    own, (told,) = explanations_of(TARGET, [FAILED], ["mine"])
    assert own == [FAILED]
    assert told.failure is not None
    assert told.failure.clues == clues
    assert told.note.startswith(note)


def test_a_failure_whose_script_cannot_be_written_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(*_: Any) -> None:
        raise RuntimeError("its make raises the second time")

    plugin = SimpleNamespace(name="own", explain=lambda subject, failures: [[CLUE]])
    monkeypatch.setattr(explaining, "explaining_plugins", lambda built_in: [plugin])
    monkeypatch.setattr(explaining, "replayed", lambda *_: SimpleNamespace())
    monkeypatch.setattr(explaining, "named_by_plugin", lambda name: raising)
    (subject,) = resolve("scaled_dot")
    (told,) = explained(subject, [FAILED])
    assert told.failure is not None
    assert (told.failure.clues, told.failure.script) == ((CLUE,), None)


def test_nothing_calls_a_subject_whose_device_is_lost() -> None:
    lost = Outcome("mine", "copies_agree", "failed", failure=Failure(case="no", device_lost=True))
    (subject,) = resolve("scaled_dot")
    assert explained(subject, [lost, FAILED]) == [lost, FAILED]


def with_a_sink(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    padded = torch.nn.functional.pad(scores, (0, 1))
    return padded.softmax(-1)[..., :-1] @ value


def too_small(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return 0.9 * ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1) @ value


def never_a_number(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ((query @ key.mT) * torch.inf).softmax(-1) @ value


def scaled_by_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if query.dim() > 3:
        scores = scores * torch.arange(1, query.shape[-3] + 1)[:, None, None].to(scores)
    return scores.softmax(-1) @ value


def with_mixed_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if key.dim() > 3:
        key = key.roll(1, -3)
    return ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1) @ value


EXTRA = ["weights_sum_to_one", "output_lies_within_values"]
HEADS = ["item_alone_equals_item_in_batch", "leading_sizes_fold"]


@pytest.mark.parametrize(
    ("function", "names", "convention"),
    [
        (with_a_sink, EXTRA, "extra_keys=1"),
        (too_small, EXTRA, ""),
        (never_a_number, EXTRA, ""),
        (scaled_by_head, HEADS, "per_head=True"),
        (with_mixed_heads, HEADS, ""),
    ],
)
def test_a_convention_is_proposed_only_if_what_failed_holds_with_it(
    function: Any, names: list[str], convention: str
) -> None:
    spec = attnbench.adapters.sdpa(function, reference=None, accepts=frozenset())
    report = attnbench.check(spec, profile="quick", invariants=names)
    proposed = f"by design? with --convention {convention}, what failed holds"
    assert (proposed in str(report)) == bool(convention), str(report)
    assert ("--convention" in str(report)) == bool(convention)
