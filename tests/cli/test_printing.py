"""Tables in a pipe, on a narrow terminal, and in an encoding without the signs of formulas."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.report.printing import (
    prepare_streams,
    print_json,
    print_line,
    print_parts,
    print_table,
)
from tests.cli_runs import run


def test_lists_in_a_pipe_are_120_columns_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # tox sets it
    for arguments in ((), ("--invariants",)):
        lines = run("list", *arguments).out.splitlines()
        assert max(map(len, lines)) <= 120
    rows = [line.split() for line in run("list").out.splitlines()]
    assert ["additive/factorised", "kernel"] in [row[:2] for row in rows]
    (additive,) = [row for row in rows if row[:2] == ["additive", "scoring"]]
    assert additive[-1] == "factorised"  # what is short is not broken


def test_what_is_too_narrow_for_columns_is_printed_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"subject": "mine", "formula": "w · tanh(W_q q + W_k k) " * 4, "x": 1, "y": None}]
    monkeypatch.setenv("COLUMNS", "60")
    print_table(rows)
    text = capsys.readouterr().out
    assert text.startswith("mine\n  formula: w · tanh(")
    assert text.endswith("\n  x: 1\n")
    monkeypatch.setenv("COLUMNS", "150")
    print_table(rows)
    assert "mine" in capsys.readouterr().out.splitlines()[3]


def test_what_utf8_lacks_or_a_terminal_acts_on_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="utf-8"))
    prepare_streams()
    print_line("\ud800.py")
    print_parts(["\x1b]0;x\x07 \u202e"])
    print_table([{"subject": "\x1b[2J"}])
    for file in ("\ud800.py", "\x9b2K"):
        print_json({"file": file})
    print_json({"reason": "1 ± 2"})
    sys.stdout.flush()
    text = content.getvalue().decode()
    assert text.replace("\n", "").isprintable()
    first, second, rest = text.split("\n", 2)
    assert (first, second) == ("\\ud800.py", "\\x1b]0;x\\x07 \\u202e")
    table, _, rest = rest.partition("{")
    assert "\\x1b[2J" in table
    found = [json.loads("{" + part.rstrip("}\n") + "}") for part in rest.split("}\n{")]
    assert found == [{"file": "\ud800.py"}, {"file": "\x9b2K"}, {"reason": "1 ± 2"}]
    assert "1 ± 2" in rest


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_does_its_work(tmp_path: Path, closed: str) -> None:
    picture = tmp_path / "x.png"
    command = shlex.join([sys.executable, "-m", "attnbench", "heatmap", "dot", "-o", str(picture)])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_check_needs_neither_a_home_nor_unicode_nor_a_plain_path(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "folder" (mine)'
    folder.mkdir()
    (folder / "my scores.py").write_text(
        "import sys, attnbench, torch\n"
        "class Raises(torch.nn.Module):\n"
        "    def forward(self, query, key):\n"
        "        if 'reproduce' not in sys.argv[0]: raise ValueError('±')  # in no script\n"
        "SPEC = attnbench.ScoringSpec(name='raises', make=lambda q, k: Raises())\n"
    )
    bare = {k: v for k, v in os.environ.items() if k not in ("USER", "LOGNAME", "XDG_CACHE_HOME")}
    bare |= {"HOME": "/proc", "COLUMNS": "60", "LC_ALL": "C", "PYTHONUTF8": "0"}
    target = str(folder / "my scores.py") + ":SPEC"
    chosen = ["--invariant", "keeps_the_contract", "--format", "junit=" + str(folder / "o'ut.xml")]
    done = subprocess.run(
        [sys.executable, "-m", "attnbench", "check", target, *chosen],
        cwd=tmp_path,
        env={**bare, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    text = done.stdout.decode("ascii")
    assert (done.returncode, done.stderr) == (1, b"")
    assert f"ValueError: \\xb1 ({folder.name}/my scores.py:4)" in text
    again, _ = (line.strip() for line in text.splitlines() if "attnbench check" in line)
    assert shlex.split(again)[2] == target
    assert "±" in (folder / "o'ut.xml").read_text("utf-8")
