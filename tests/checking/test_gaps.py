"""What a check did not look at is named by weight, with what would change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec, MechanismSpec, ScoringSpec
from attnbench.adapters import sdpa, textbook
from attnbench.checking.check_report import gap_lines
from attnbench.checking.gaps import HEAVY, Gap, coverage_of, declaration, declarations, gaps_of
from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.checking.parametrization import Check
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve


class Dot(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT


class Pooled(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


class Projected(nn.Module):
    def __init__(self, num_hiddens: int) -> None:
        super().__init__()
        self.into = nn.Linear(num_hiddens, num_hiddens)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, self.into(values))


def gaps(spec: Any) -> dict[str, Gap]:
    (subject,) = resolve(spec)
    return {gap.what: gap for gap in gaps_of(subject)}


def reference(module: nn.Module, q: list[float], k: list[float]) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True))


NO_REFERENCE = "no reference: a wrong but self-consistent formula would pass"


def test_masks_are_missed_only_where_they_can_be_declared() -> None:
    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    assert "no mask was tried" not in gaps(sdpa(plain))  # its signature has none
    spec = MechanismSpec(name="own", make=lambda *s: Pooled(), conventions={"masks": ()})
    assert "no mask was tried" in gaps(spec)


def test_no_reference_is_asked_for_where_heads_differ() -> None:
    spec = textbook(Projected, conventions={"per_head": True})
    assert gaps(spec)[NO_REFERENCE].remedy == "same_as= and the subject that it should equal"


def test_without_a_reference_a_wrong_formula_passes() -> None:
    spec = ScoringSpec(name="mine", make=lambda q, k: Dot(), equal_sizes=True)
    assert gaps(spec)[NO_REFERENCE].weight == 3
    assert "q, k, i, j" in gaps(spec)[NO_REFERENCE].remedy
    told = ScoringSpec(name="told", make=lambda q, k: Dot(), equal_sizes=True, reference=reference)
    assert gaps(told) == {}
    same = MechanismSpec(
        name="same", make=lambda q, k, v: Pooled(), equal_sizes=True, same_as="scaled_dot"
    )
    assert NO_REFERENCE not in gaps(same)


@pytest.mark.parametrize(("laws", "tested"), [((), False), (("left_padding_is_inert",), True)])
def test_padding_with_a_cache_is_the_heaviest(laws: tuple[str, ...], tested: bool) -> None:
    spec = LayerSpec(
        name="cached",
        make=lambda size: nn.Linear(size, size),
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=CacheSpec(new=lambda module, rows: {}),
        laws=laws,
    )
    (subject,) = resolve(spec)
    found = [(gap.what, gap.tested_by) for gap in gaps_of(subject) if gap.weight >= HEAVY]
    gap = ("padding with a cache was not tested", "padded_rows_decode_as_alone")
    assert found == ([] if tested else [gap])


def test_an_order_and_a_grid_that_nothing_is_declared_of_are_gaps() -> None:
    spec = LayerSpec(name="plane", make=lambda size: nn.Linear(size, size), grid=True)
    named = {
        "tokens in another order were not tried": {"conventions": {"positions": "none"}},
        "the grid was not transposed: rows may be taken for columns": {
            "laws": ("transposes_with_the_grid",)
        },
    }
    assert set(gaps(spec)) == {NO_REFERENCE, *named}
    for what, declared in named.items():
        assert what not in gaps(replace(spec, **declared))
    known = {"grid": False, "accepts": ("padding_mask",), "conventions": {"empty_rows": "refused"}}
    assert "items without a real token raise, and were not tried" in gaps(replace(spec, **known))


def test_padding_with_a_cache_that_a_failure_shows_was_tested() -> None:
    gap = Gap("mine", HEAVY, "untested", "laws", tested_by="padded_rows_decode_as_alone")
    other = replace(gap, subject="other")
    failed = Outcome("mine", "padded_rows_decode_as_alone", "failed", "output[0] = 1")
    assert coverage_of([gap, other], {}, [failed]) == (other,)


def test_a_declared_law_that_ran_on_no_case_is_a_gap() -> None:
    outcomes = [
        Outcome("mine", "bilinear", "skipped", "it takes none of the property's cases: too large"),
        Outcome("mine", "rotation_invariant", "skipped", "law not declared"),
        Outcome("mine", "translation_invariant", "passed", cases=9),
    ]
    laws = {"mine": ("bilinear", "translation_invariant")}
    light = Gap("mine", 1, "its weights were not looked at", "laws")
    found = coverage_of([light], laws, outcomes)
    assert [gap.weight for gap in found] == [3, 1]
    assert gap_lines(found[:1]) == [
        "Not looked at, mine: the law bilinear is declared, but ran on no case: "
        "it takes none of the property's cases: too large"
    ]


def test_a_law_that_a_broken_contract_kept_from_running_is_no_gap() -> None:
    outcomes = [
        Outcome("mine", KEEPS_CONTRACT, "failed", "mine raised on a legal input"),
        Outcome(
            "mine", "bilinear", "skipped", f"not run: {KEEPS_CONTRACT} failed, and so would this"
        ),
    ]
    assert coverage_of([], {"mine": ("bilinear",)}, outcomes) == ()


def test_a_report_ends_with_what_was_not_looked_at() -> None:
    spec = ScoringSpec(name="mine", make=lambda q, k: Dot(), equal_sizes=True)
    report = attnbench.check(spec, profile="quick", invariants=["weights_sum_to_one"])
    assert [gap.what for gap in report.coverage] == [NO_REFERENCE]
    assert str(report).splitlines()[-1].startswith(f"Not looked at, mine: {NO_REFERENCE}; declare")


def test_the_reprs_of_a_subject_and_a_check_are_short() -> None:
    (subject,) = resolve(ScoringSpec(name="mine", make=lambda q, k: Dot(), equal_sizes=True))
    assert repr(subject) == "<scoring mine>"
    assert repr(Check(select_invariants(["layouts_agree"])[0])) == "<check layouts_agree>"


def test_variants_of_a_spec_in_a_file_are_a_gap_until_they_are_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import attnbench, torch\n"
        "def make(query_size, key_size, scale=1.0):\n"
        "    return torch.nn.Bilinear(query_size, key_size, 1)\n"
        'RIGHT = attnbench.ScoringSpec(name="own", make=make, variants=({}, {"scale": 2.0}))\n'
    )
    what = f"its variants were not tried; check them too, such as '{path}:RIGHT(scale=2.0)'"
    assert what in gaps(f"{path}:RIGHT")
    assert what not in gaps(f"{path}:RIGHT(scale=2.0)")


def test_a_function_without_a_spec_is_told_what_a_command_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def attention(query, key, value, attn_mask=None):\n"
        "    return (query @ key.mT).softmax(-1) @ value\n"
    )
    (subject,) = resolve(f"{file}:attention as sdpa")
    assert (
        declaration(subject, "finite_at_extremes") == '--exempt "finite_at_extremes=why" skips it'
    )
    (named,) = resolve("scaled_dot")
    spec = 'exempt={"finite_at_extremes": "why"} in the spec skips it'
    assert declaration(named, "finite_at_extremes") == spec
    told = [text for text, _ in declarations(subject, "empty_rows_give_zeros")]
    assert told == [
        f"with --convention empty_rows={word}, what failed holds"
        for word in ("mean", "nan", "refused")
    ]
    assert not [*declarations(subject, "finite_at_extremes")]
    assert not [*declarations(named, "leading_sizes_fold")]  # its masks are those of attend
