"""The likely cause: clues, how far they are trusted, and the known bugs that are shipped."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
import torch
from torch import Tensor

import attnbench
from attnbench.checking.api import select_invariants
from attnbench.checking.evidence import diagnosis
from attnbench.checking.evidence.diagnosis import Clue, clue_of, diagnosed, trusted
from attnbench.checking.outcomes import CheckReport, Outcome, finding_text
from tests.meta.mutants import MUTANTS
from tests.meta.mutants.causes import CAUSES, judged


def shipped(name: str) -> Any:
    folder = resources.files("attnbench.checking.evidence")
    return json.loads(folder.joinpath(name).read_text(encoding="utf-8"))


def failed(*names: str, **more: Any) -> list[Outcome]:
    return [Outcome("mine", name, "failed", "output[0] = 1", **more) for name in names]


def test_what_explains_the_output_comes_before_any_invariant() -> None:
    found = failed("inputs_are_unchanged", explained=("mask_inverted", "mask_ignored"))
    assert clue_of(found) == Clue("makes", "mask_inverted", "mask_inverted")


def test_the_most_specific_property_comes_first() -> None:
    names = ["agrees_with_scalar_reference", "unit_variance", "layouts_agree"]
    assert clue_of(failed(*names)) == Clue("fails", "layouts_agree", "layout")
    assert clue_of(failed(*names[:2])) == Clue("alone", "unit_variance", "initialisation")


def test_an_invariant_at_which_the_call_itself_failed_says_nothing_of_its_property() -> None:
    text = "mine returned output of shape (2, 1) for query (2, 1, 4), but should return (2, 1, 4)"
    found = [Outcome("mine", name, "failed", text) for name in ("layouts_agree", "copies_agree")]
    assert clue_of(found) == Clue("says", "shape", "shape")


def test_where_the_contracts_own_call_raises_no_property_of_another_call_is_told() -> None:
    text = "mine raised on a legal input: TypeError: 'NoneType' object is not iterable (mine.py:4)"
    names = ("keeps_the_contract", "inputs_are_unchanged", "layouts_agree")
    found = [Outcome("mine", name, "failed", text) for name in names]
    assert clue_of(found) is None
    assert clue_of(found[1:]) == Clue("alone", "inputs_are_unchanged", "inputs_changed")


def test_a_number_too_large_for_a_half_type_is_half_precision() -> None:
    text = (
        "mine raised on a legal input: RuntimeError: value cannot be converted to type c10::Half "
        "without overflow (mine.py:66)"
    )
    found = [Outcome("mine", "keeps_the_contract", "failed", text)]
    assert clue_of(found) == Clue("says", "half_precision", "half_precision")


def test_what_the_contract_says_counts_alone() -> None:
    text = "mine answers differently the second time: output[0] = 1, then 2 for the same call"
    others = failed(*[invariant.name for invariant in select_invariants(None)][:20])
    found = [Outcome("mine", "keeps_the_contract", "failed", text), *others]
    assert clue_of(found) == Clue("says", "not_deterministic", "not_deterministic")


def test_the_reason_behind_a_failure_is_what_it_says() -> None:
    text = (
        "weights[0] = 1\n  because mine answers differently the second time: output[0] = 1\n  [x]"
    )
    found = [Outcome("mine", "bias_is_added_to_scores", "failed", text)]
    assert clue_of(found) == Clue("says", "not_deterministic", "not_deterministic")


def test_nothing_is_said_of_what_passed() -> None:
    assert clue_of([Outcome("mine", "layouts_agree", "passed")]) is None


def test_a_clue_is_trusted_where_it_was_right_for_most_known_bugs() -> None:
    clue = Clue("fails", "layouts_agree", "layout")
    right, wrong = (
        {"clue": clue.name, "causes": [cause], "failed": ["layouts_agree"]}
        for cause in ("layout", "gradient")
    )
    assert trusted(clue, [right, right, wrong], ["layouts_agree"])
    assert not trusted(clue, [right, wrong, wrong], ["layouts_agree"])


def test_a_clue_is_trusted_where_a_known_bug_that_fails_alike_has_the_cause() -> None:
    clue, failed = Clue("fails", "layouts_agree", "layout"), ["layouts_agree", "copies_agree"]
    far = {"clue": clue.name, "causes": ["layout"], "failed": ["layouts_agree", *"abcdefghijklm"]}
    near = {"clue": None, "causes": ["gradient"], "failed": failed}
    assert trusted(clue, [far, near], failed[:1])
    assert not trusted(clue, [far, *7 * [near]], failed)
    assert trusted(clue, [far, *7 * [near]], failed[:1], {*failed[:1]})  # all are alike
    assert not trusted(clue, [{**far, "failed": ["unit_variance"]}], failed)
    made = Clue("makes", "layouts_agree", "layout")
    assert trusted(made, [{**far, "failed": ["unit_variance"]}], failed)


def test_the_failure_that_shows_the_cause_best_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"clue": "fails:layouts_agree", "causes": ["layout"], "bugs": ["own", "timm#1"]}]
    rows[0]["failed"] = ["layouts_agree"]
    files = {"causes.json": shipped("causes.json"), "diagnoses.json": 3 * rows}
    monkeypatch.setattr(diagnosis, "_data", files.__getitem__)
    found = failed("agrees_with_scalar_reference", "unit_variance", "layouts_agree")
    told = diagnosed([Outcome("mine", "copies_agree", "passed"), *found])
    text = "the answer depends on how the tensors lie in memory, as in timm#1"
    assert [outcome.diagnosis for outcome in told] == [None, None, None, text]
    lines = finding_text(told[1:]).splitlines()
    assert lines[0] == f"mine: {text} (likely cause)"
    assert lines[1] == "FAILED mine: layouts_agree"
    assert lines[-2] == "  also failed: agrees_with_scalar_reference, unit_variance"
    assert lines[-1].startswith("  by design? exempt=")
    assert text in repr(CheckReport(told))


def _laid(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention on (B, L, H, E)."""
    tensors = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*tensors).transpose(1, 2)


@pytest.mark.parametrize("invariants", [["pools_values"], ["constant_values_come_back"], None])
def test_a_function_of_another_layout_is_told_its_style(invariants: list[str] | None) -> None:
    report = attnbench.check(_laid, style="sdpa", profile="quick", invariants=invariants)
    told = "the function takes (B, L, H, E), the layout of the style flash, and not (B, H, L, E)"
    assert [o.diagnosis for o in report.outcomes if o.diagnosis] == [told]
    right = torch.nn.functional.scaled_dot_product_attention
    mirrored = attnbench.check(
        lambda q, k, v: right(q, k, v), style="flash", profile="quick", invariants=["pools_values"]
    )
    assert "the layout of the style sdpa" in str(mirrored)


def test_a_call_that_raises_tells_nothing_of_the_property_that_made_it() -> None:
    raised = Outcome("a", "masks_broadcast", "failed", "a raised on a legal input: ValueError: no")
    assert diagnosed([raised])[0].diagnosis is None
    contract = Outcome("a", "keeps_the_contract", "passed")
    assert diagnosed([contract, raised])[1].diagnosis is not None


def test_without_a_cause_the_most_specific_failure_is_described() -> None:
    found = failed("agrees_with_scalar_reference", "copies_agree", "layer_calls_leave_no_trace")
    text = finding_text([Outcome("mine", "pools_values", "timeout", "too long"), *found])
    assert text.startswith("FAILED mine: layer_calls_leave_no_trace\n")
    assert "also failed: agrees_with_scalar_reference, copies_agree" in text
    assert "failed: layer_calls_leave_no_trace on mine" in repr(CheckReport(tuple(found)))
    contract = [*found, *failed("keeps_the_contract")]
    assert finding_text(contract).startswith("FAILED mine: keeps_the_contract\n")


def test_what_is_shipped_names_what_there_is() -> None:
    data = shipped("causes.json")
    known = {invariant.name for invariant in select_invariants(None)}
    assert {name for name, _ in data["shown_by"]} <= known
    pointed = [*data["made_by"].values(), *(cause for _, cause in data["said"] + data["shown_by"])]
    assert set(pointed) <= set(data["causes"])
    assert {cause for row in shipped("diagnoses.json") for cause in row["causes"]} <= set(
        data["causes"]
    )


def test_every_mutant_has_its_causes_named() -> None:
    assert set(CAUSES) == {mutant.name for mutant in MUTANTS}
    assert {cause for row in CAUSES.values() for cause in row} <= set(
        shipped("causes.json")["causes"]
    )


def test_of_known_bugs_left_out_four_fifths_are_told_right_and_few_wrong() -> None:
    rows = shipped("diagnoses.json")
    found = [judged(row, rows) for row in rows]
    assert found.count("right") >= 0.8 * len(rows)
    assert found.count("wrong") <= 0.04 * len(rows)
