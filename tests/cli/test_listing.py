"""The commands that list: plugins and their state, and subjects."""

from __future__ import annotations

from importlib import metadata

import pytest

from attnbench.cli import listing
from tests.cli_runs import python, run


def test_plugins_reads_metadata_only() -> None:
    rows = run("list", "--plugins", "--json").json
    assert {"additive", "scaled_dot"} <= {row["plugin"] for row in rows}
    assert {row["status"] for row in rows} == {"found"}
    assert "attnbench" in {row["distribution"] for row in rows}


def test_plugins_tell_why_one_failed_before_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"plugin": "old", "distribution": "mine", "version": "1", "status": "failed"}
    told = {"message": "old.path went", "traceback": "Traceback ...", "brings": []}
    monkeypatch.setattr(listing, "load_plugins", lambda **_: [{**row, **told}])
    result = run("list", "--plugins", "--load")
    assert result.code == 3
    assert "old (mine 1) failed to load: old.path went\n  Traceback" in result.out


def test_a_sound_installation_is_one_screen_and_exit_code_0() -> None:
    result = run("list", "--machine")
    assert result.code == 0, result.out
    for word in ("attnbench", "torch", "devices", "compiler"):
        assert word in result.out
    assert result.out.splitlines()[-1] == "Nothing is wrong here."


def test_what_is_wrong_with_the_installation_is_one_line_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99.1" if name == "torch" else real(name))
    result = run("list", "--machine", "--json")
    assert result.code == 1
    wrong = result.json["wrong"]
    assert any("but 99.1 is installed: pip install 'torch<" in line for line in wrong)


def test_a_blocked_plugin_is_shown_as_blocked_and_its_subject_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTNBENCH_DISABLED_PLUGINS", "dot")
    rows = {row["plugin"]: row for row in run("list", "--plugins", "--load", "--json").json}
    assert (rows["dot"]["status"], rows["scaled_dot"]["status"]) == ("blocked", "ok")
    gone = run("check", "dot")
    assert gone.code == 2
    assert "dot (blocked)" in gone.err


def test_list_shows_each_subject_with_its_formula_and_kernels() -> None:
    rows = {row["subject"]: row for row in run("list", "--json").json}
    assert rows["scaled_dot"]["kind"] == "scoring"
    assert rows["scaled_dot"]["formula"] == "qᵀk / √E"
    assert rows["multi_head"]["kind"] == "mechanism"
    shown = run("list", "scaled_dot").out
    assert "query_size == key_size" in shown
    assert "plain" in shown.splitlines()[-2]


def test_list_shows_every_invariant_and_law_with_its_statement() -> None:
    rows = {row["invariant"]: row for row in run("list", "--invariants", "--json").json}
    assert rows["bilinear"]["kind"] == "law"
    assert rows["weights_sum_to_one"]["kind"] == "invariant"
    assert all(row["statement"].endswith(".") for row in rows.values())
    assert "statement" in run("list", "--invariants").out


def test_what_list_does_needs_neither_hypothesis_nor_the_compiler() -> None:
    code = (
        "import sys; from attnbench.registry.catalog import plugins_and_shadows;"
        "from attnbench.report.subject_rows import subject_rows;"
        "case = 'b8-L8-S8-Eq4-Ek4-Ev4-float32-cpu-none-contiguous-normal-s0';"
        "assert min(len(plugins_and_shadows()[0]), len(subject_rows(None, case))) > 20;"
        "print([m for m in ('hypothesis', 'torch._dynamo') if m in sys.modules])"
    )
    assert python("-c", code).stdout.strip() == "[]"
