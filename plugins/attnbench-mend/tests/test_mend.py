"""Which change is shown for sources whose wrong line is known, and for what none is shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attnbench_mend.edits import edits
from attnbench_mend.explainer import attnbench_explain
from attnbench_mend.running import SourceFile
from attnbench_mend.search import mend

import attnbench
from attnbench.testing import resolve

pytestmark = pytest.mark.slow

SOURCES = Path(__file__).parent / "sources"
SEARCH_S = 60.0
"""More than a search has in a check, as other tests run beside this one."""

FAILING = {
    "bias": "bias_is_added_to_scores key_given_again_equals_bias_of_log_2 large_bias_hides",
    "diagonal": "masking_equals_deleting",
    "empty_rows": "empty_rows_give_zeros",
    "groups": "grouped_heads_equal_expanded_heads",
    "in_place": "inputs_are_unchanged",
    "layout": "keeps_the_contract",
    "overflow": "weights_sum_to_one",
    "padding": "padded_tokens_are_inert",
    "positions": "calls_may_be_cut_anywhere",
    "window": "window_leaves_the_keys_around",
}
"""The sources, whose wrong lines end with a comment, and properties that each violates."""


def test_nothing_is_shown_for_what_is_random() -> None:
    assert not [*attnbench_explain(None, [SimpleNamespace(fault="random")])]


def failures_of(target: str, *names: str) -> list[Any]:
    report = attnbench.check(target, profile="quick", invariants=names)
    return [outcome.failure for outcome in report.outcomes if outcome.failure is not None]


@pytest.mark.parametrize("name", FAILING)
def test_the_wrong_line_is_the_one_that_changes(name: str) -> None:
    target = f"{SOURCES / name}.py:SPEC"
    failures = failures_of(target, *FAILING[name].split())
    (subject,) = resolve(target)
    found = mend(subject, failures, SEARCH_S)
    assert found is not None
    file, edit = found
    wrong = [line for line in Path(file).read_text().splitlines() if line.endswith("# wrong")]
    assert Path(file).read_text().splitlines()[edit.line - 1] in wrong, edit
    assert failures_of(target, *FAILING[name].split())  # nothing of the change is left


def test_nothing_is_shown_where_ordinary_calls_are_wrong(tmp_path: Path) -> None:
    file = tmp_path / "scores.py"
    file.write_text(
        "from attnbench.adapters import sdpa\n"
        "def attention(query, key, value):\n"
        "    return (query @ key.mT).softmax(-1) @ value\n"
        "SPEC = sdpa(attention)\n"
    )
    failures = failures_of(f"{file}:SPEC", "agrees_with_scalar_reference")
    (subject,) = resolve(f"{file}:SPEC")
    assert failures
    assert mend(subject, failures, SEARCH_S) is None


def test_nothing_is_shown_where_only_calls_of_one_token_are_right(tmp_path: Path) -> None:
    file = tmp_path / "heads.py"
    file.write_text(
        "from torch import nn\n"
        "class Attention(nn.Module):\n"
        "    def __init__(self, dim, heads=4):\n"
        "        super().__init__()\n"
        "        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)\n"
        "    def forward(self, x):\n"
        "        B, L, E = x.shape\n"
        "        q, k, v = (t.reshape(B, self.heads, L, -1) for t in self.qkv(x).chunk(3, -1))\n"
        "        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        "        return y.transpose(1, 2).reshape(B, L, E)\n"
    )
    names = ("outputs_depend_on_their_token", "later_tokens_are_invisible")
    failures = failures_of(f"{file}:Attention", *names)
    (subject,) = resolve(f"{file}:Attention")
    assert failures
    assert mend(subject, failures, SEARCH_S) is None


def test_no_change_leaves_out_a_line_or_decides_a_branch() -> None:
    text = "def f(x, mask):\n    if mask is not None:\n        x = x + mask\n    return x\n"
    ran = {line: {"x": ("tensor", 2, "floating"), "mask": ("tensor", 2, "bool")} for line in (2, 3)}
    found = [edit.applied(text) for edit in edits(text, ran)]
    assert found
    assert not any("pass" in one or "if True" in one or "if False" in one for one in found)
    assert all(len(one.splitlines()) == 4 for one in found)


def test_a_tuple_of_nothing_keeps_its_parentheses() -> None:
    text = "def f(x):\n    return x.reshape(x.shape + ())\n"
    found = [edit.applied(text) for edit in edits(text, {2: {"x": ("tensor", 2, "floating")}})]
    assert any("(() + x.shape)" in c or "(x.shape - (()))" in c for c in found), found


def test_a_changed_function_runs_and_is_put_back(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("def one():\n    return 1\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    source = SourceFile(str(file))
    with source.running("def one():\n    return 2\n") as runs:
        assert runs
        assert space["one"]() == 2
    assert space["one"]() == 1
    with source.running("def one(:\n    return 2\n") as runs:
        assert not runs
