"""Grades of reproducibility: bitwise, rounding or neither, and where it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_answers import reproducibility as answers
from attnbench_zoo.mutants.bitwise import IN_ORDER, InOrder
from torch import Tensor

from attnbench.adapters import sdpa
from attnbench.cli import main
from attnbench.invariants.bitwise import ARRANGEMENTS

LAWS = [arrangement.law for arrangement in ARRANGEMENTS]


@pytest.fixture(autouse=True)
def _short(monkeypatch: Any) -> None:
    monkeypatch.setattr(answers, "_LENGTHS", (1, 3, 8, 21))


def _grades(make: type, **changes: Any) -> dict[str, dict[str, Any]]:
    spec = replace(IN_ORDER.spec, make=make, **changes)
    return {row["law"]: row for row in answers.drift(spec, dtypes=("float32",))}


def test_one_fixed_order_is_bitwise_in_all() -> None:
    rows = _grades(InOrder)
    assert {law: row["grade"] for law, row in rows.items()} == dict.fromkeys(LAWS, "bitwise")


def _seeded(law: str, fault: str, least: int) -> type:
    """A class that breaks a law, by another order of sums or by a wrong value, from a length on."""

    class Seeded(InOrder):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            self.calls += 1
            right = super().forward(query, key, value, attn_mask)
            if key.shape[-2] < least or query.dim() < 3 or not _meets(law, query, self.calls):
                return right
            if fault == "value":
                other = right + 0.01
            else:
                mask = None if attn_mask is None else attn_mask.flip(-1)
                other = super().forward(query, key.flip(-2), value.flip(-2), mask)
            if law == "position_in_batch_invariant":
                first = torch.arange(len(right)).reshape(-1, *[1] * (right.dim() - 1)) == 0
                other = torch.where(first, other, right)
            return other

    return Seeded


def _meets(law: str, query: Tensor, calls: int) -> bool:
    return {
        "batch_invariant": query.shape[0] == 1,
        "position_in_batch_invariant": query.shape[0] > 1,
        "chunk_invariant": query.shape[-2] == 1,
        "run_to_run": calls % 4 == 0 and query.dtype == torch.float32,
        "thread_invariant": torch.get_num_threads() > 2,
    }[law]


@pytest.mark.parametrize("least", [8, 21])
@pytest.mark.parametrize(("fault", "grade"), [("order", "rounding"), ("value", "neither")])
@pytest.mark.parametrize("law", LAWS)
def test_a_seeded_fault_is_graded_and_placed(law: str, fault: str, grade: str, least: int) -> None:
    row = _grades(_seeded(law, fault, least))[law]
    assert row["grade"] == grade
    assert row["begins"].endswith(f"S={least}")
    assert row["bit"]
    assert row["units"] > 0
    assert "output[" in row["place"]


def test_threads_are_as_many_after_as_before() -> None:
    before = torch.get_num_threads()
    _grades(InOrder)
    assert torch.get_num_threads() == before


def test_a_declared_law_that_bits_break_exits_with_1(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "loud.py"
    file.write_text(
        "import attnbench\n"
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "from attnbench.adapters import sdpa as adapt\n"
        "SPEC = adapt(sdpa, name='fused', laws=('pools_values', 'chunk_invariant'))\n"
    )
    assert main(["drift", f"{file}:SPEC", "--dtype", "float32"]) == 1
    printed = capsys.readouterr().out
    assert "chunk_invariant" in printed
    assert "declares" in printed


def _narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.dtype == torch.float64:
        raise TypeError("no float64")
    if query.shape[-2] == 1:
        key, value = key.flip(-2), value.flip(-2)
    return InOrder(8, 8, 8)(query, key, value)


def test_a_target_that_raises_is_left_out_with_the_head_of_its_message(
    tmp_path: Any, capsys: Any
) -> None:
    path = tmp_path / "raising.py"
    path.write_text("def f(query, key, value):\n    raise RuntimeError('first\\nsecond')\n")
    assert main(["drift", f"{path}:f as sdpa"]) == 3
    assert "is left out: RuntimeError: first\n" in capsys.readouterr().err


@pytest.mark.parametrize(("reference", "grade"), [(True, "rounding"), (False, "not tried")])
def test_without_float64_the_budget_is_that_of_the_formula(reference: bool, grade: str) -> None:
    fields: dict[str, Any] = {} if reference else {"reference": None}
    spec = sdpa(_narrow, name="narrow", dtypes=("float32",), **fields)
    rows = {row["law"]: row for row in answers.drift(spec, dtypes=("float32",))}
    assert rows["chunk_invariant"]["grade"] == grade
    assert rows["batch_invariant"]["grade"] == "bitwise"
