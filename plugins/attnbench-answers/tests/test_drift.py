"""Which arrangement of a call changes its bits: mistakes in an attention with one order of sums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_answers import reproducibility
from attnbench_answers.reproducibility import drift
from attnbench_zoo.right.in_order import InOrder
from torch import Tensor

import attnbench
from attnbench.adapters import sdpa
from attnbench.cli import main
from attnbench.testing import ARRANGEMENTS

LAWS = [arrangement.law for arrangement in ARRANGEMENTS]
SHORT = {law.partition("_")[0]: law for law in LAWS}
"""``batch``, ``chunk``, ``run`` and ``thread``."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: Any) -> None:
    monkeypatch.setattr(reproducibility, "_LENGTHS", (1, 3, 8, 21))


in_order = InOrder(8, 8, 8)
"""One feature and one key after another, whatever else is in the call."""


def turned(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    """Keys added up from the last to the first."""
    mask = None if mask is None else mask.flip(-1)
    found: Tensor = in_order(query, key.flip(-2), value.flip(-2), mask)
    return found


def in_half(query: Tensor, *given: Any) -> Tensor:
    return in_order(query.bfloat16().to(query.dtype), *given)


def by_row(query: Tensor, *given: Any) -> Tensor:
    """Queries that lose a little with each position in the call."""
    return in_order(query * 0.99 ** torch.arange(query.shape[-2])[:, None], *given)


def without_last(*given: Any) -> Tensor:
    found = in_order(*given)
    found[..., -1, :] = 0
    return found


MISTAKES: dict[str, tuple[Callable[[Tensor], bool], Callable[..., Tensor], dict[str, str]]] = {
    "none": (lambda q: True, in_order, {}),
    "a batch is in half": (lambda q: len(q) > 1, in_half, {"batch": "neither"}),
    "positions from the chunk": (lambda q: True, by_row, {"chunk": "neither"}),
    "a thread that loses the last row": (
        lambda q: torch.get_num_threads() > 2,
        without_last,
        {"thread": "neither"},
    ),
}
"""When each is made, what is then computed, and the laws that it breaks, with their grades."""
ORDERS = {
    "keys_are_split_for_a_batch_of_one": ("batch",),
    "the_last_item_is_an_edge_case": ("batch",),
    "one_query_is_a_decode_kernel": ("chunk",),
    "partial_sums_come_as_they_finish": tuple(SHORT),
    "threads_share_out_the_keys": ("thread",),
}
"""Rows of the zoo that add up in another order, and the laws that each breaks by rounding."""


@pytest.mark.parametrize("name", ORDERS)
def test_another_order_of_sums_is_rounding(name: str) -> None:
    rows = drift(f"attnbench_zoo.bugs.{name}:SPEC", dtypes=("float32",))
    found = {row["law"] for row in rows if row["grade"] != "bitwise"}
    assert found == {SHORT[short] for short in ORDERS[name]}
    assert {row["grade"] for row in rows} <= {"bitwise", "rounding"}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_law_grades_a_mistake(name: str) -> None:
    meets, change, grades = MISTAKES[name]

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return (change if meets(query) else in_order)(query, key, value, attn_mask)

    before = torch.get_num_threads()
    rows = drift(sdpa(attend, name="attend"), dtypes=("float32",))
    found = {row["law"]: row["grade"] for row in rows}
    assert found == {law: grades.get(short, "bitwise") for short, law in SHORT.items()}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("least", [8, 21])
@pytest.mark.parametrize(("error", "grade"), [(0.0, "rounding"), (0.01, "neither")])
def test_a_difference_is_placed_where_it_begins(error: float, grade: str, least: int) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        if key.shape[-2] < least or len(query) > 1:
            return in_order(query, key, value, attn_mask)
        return turned(query, key, value, attn_mask) + error

    (row,) = (
        row
        for row in drift(sdpa(attend, name="attend"), dtypes=("float32",))
        if row["law"] == "batch_invariant"
    )
    assert (row["grade"], row["begins"][-2:].strip("=")) == (grade, str(least))
    assert row["units"] > 0
    assert "output[" in row["place"]


def _narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if query.dtype == torch.float64:
        raise TypeError("no float64")
    if query.shape[-2] == 1:
        key, value = key.flip(-2), value.flip(-2)
    return in_order(query, key, value)


@pytest.mark.parametrize(("reference", "grade"), [(True, "rounding"), (False, "not tried")])
def test_without_float64_the_budget_is_that_of_the_formula(reference: bool, grade: str) -> None:
    fields: dict[str, Any] = {} if reference else {"reference": None}
    spec = sdpa(_narrow, name="narrow", dtypes=("float32",), **fields)
    rows = {row["law"]: row for row in drift(spec, dtypes=("float32",))}
    assert rows["chunk_invariant"]["grade"] == grade
    assert rows["batch_invariant"]["grade"] == "bitwise"


def test_a_declared_law_that_bits_break_exits_with_1(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "loud.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "from attnbench.adapters import sdpa as adapt\n"
        "SPEC = adapt(sdpa, name='fused', laws=('pools_values', 'chunk_invariant'))\n"
    )
    assert main(["drift", f"{tmp_path}/loud.py:SPEC", "--dtype", "float32"]) == 1
    assert "fused declares chunk_invariant, but" in capsys.readouterr().out


def test_a_target_that_raises_is_left_out_with_its_message(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "raising.py"
    path.write_text("def f(query, key, value):\n    raise RuntimeError('first\\nsecond')\n")
    assert main(["drift", f"{path}:f as sdpa"]) == 3
    assert "is left out: RuntimeError: first\n" in capsys.readouterr().err


def test_it_takes_what_was_recorded(tmp_path: Path, capsys: Any) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    states = torch.randn(1, 5, 8)
    with torch.no_grad(), attnbench.record(layer, tmp_path) as files:
        layer(states, states, states, need_weights=False)
    assert main(["drift", "scaled_dot", "--dtype", "float32", "--inputs", str(files[0])]) == 0
    assert "run_to_run" in capsys.readouterr().out
