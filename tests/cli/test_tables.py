"""Tables in a pipe, on a narrow terminal, and in an encoding without the signs of formulas."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.cli.tables import print_json, print_table, survive_narrow_encodings
from tests.cli_runs import run

ROWS = [
    {
        "subject": f"subject_{n}",
        "kind": "scoring",
        "formula": "w · tanh(W_q q + W_k k) " * 4,
        "x": n,
    }
    for n in range(3)
]


def test_lists_in_a_pipe_are_120_columns_wide() -> None:
    for arguments in ((), ("--invariants",)):
        lines = run("list", *arguments).out.splitlines()
        assert max(map(len, lines)) <= 120
    assert "additive/factorised" in run("list").out


def test_a_table_is_as_wide_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(ROWS)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        assert any(line.split()[:2] == ["subject_1", "scoring"] for line in lines)


def test_what_is_too_narrow_for_columns_is_printed_in_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_table(ROWS, title="formulas")
    text = capsys.readouterr().out
    assert text.startswith("formulas\nsubject subject_0\n  kind     scoring\n  formula  w · tanh")
    assert max(map(len, text.splitlines())) <= 40
    assert " ".join(text.split()).count("tanh(W_q q + W_k k)") == 12


def test_a_stream_that_cannot_encode_a_sign_writes_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="ascii"))
    survive_narrow_encodings()
    print("1 ± 2")
    print_json({"reason": "1 ± 2"})
    sys.stdout.flush()
    first, rest = content.getvalue().decode("ascii").split("\n", 1)
    assert first == "1 \\xb1 2"
    assert json.loads(rest) == {"reason": "1 ± 2"}


def test_the_module_runs_the_commands_in_a_locale_without_unicode(tmp_path: Path) -> None:
    environment = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "list", "gaussian"],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"gaussian (scoring)" in done.stdout
    assert b"\\u" in done.stdout
