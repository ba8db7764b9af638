"""Formats and commands of plugins that raise, hang or have the name of a core one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.cli import check
from tests.cli_runs import SUM, Result, run

FORMATS = """
import time
import attnbench


def slow(findings):
    time.sleep(600)


@attnbench.hookimpl
def attnbench_formats():
    yield attnbench.Format(name="counted", render=lambda found: str(len(found.report.outcomes)))
    yield attnbench.Format(name="raises", render=lambda found: 1 / 0)
    yield attnbench.Format(name="number", render=lambda found: 3)
    yield attnbench.Format(name="slow", render=slow)
    yield attnbench.Format(name="sarif", render=lambda found: "mine")
"""
COMMANDS = """
def command() -> int:
    '''Say hello.'''
    print("hello")
    return 0
"""
Installs = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installs:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ATTNBENCH_DISABLED_PLUGINS", "")  # which a deadly one is added to

    def installed(group: str, points: str, source: str) -> None:
        (tmp_path / "strange_plugin.py").write_text(source)
        info = tmp_path / "strange-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        sys.modules.pop("strange_plugin", None)

    return installed


def checked(*words: str) -> Result:
    return run("check", "dot", *SUM, *words)


def test_a_format_of_a_plugin_is_rendered_and_one_that_fails_is_a_line(
    install: Installs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("attnbench", "strange = strange_plugin", FORMATS)
    monkeypatch.setattr(check, "_TIMEOUT_S", 15.0)
    names = ("raises", "number", "slow", "counted", "sarif")
    files = {name: tmp_path / f"{name}.txt" for name in names}
    words = [word for name, path in files.items() for word in ("--format", f"{name}={path}")]
    result = checked(*words)
    assert result.code == 3
    assert "1 passed" in result.out
    warning, *lines = result.err.splitlines()
    assert "registers 'sarif', which is built in" in warning
    told = ("raises: ", "number: ", "slow: ")
    for line, start in zip(lines, told, strict=True):
        assert line.startswith(f"attnbench: --format {start}")
    assert "ZeroDivisionError" in lines[0]
    assert "a format gives text" in lines[1]
    assert files["counted"].read_text() == "1"
    assert "$schema" in files["sarif"].read_text()
    assert not files["raises"].exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def attnbench_contract(): return 99\n", "it is written for version 99 of the plugin"),
        ("import os\nos._exit(7)\n", "plugin 'strange' (strange 1.0) failed to load"),
    ],
)
def test_a_plugin_that_fails_is_a_line_and_the_rest_goes_on(
    install: Installs, source: str, said: str
) -> None:
    install("attnbench", "strange = strange_plugin", source)
    result = checked()
    assert (result.code, "1 passed" in result.out) == (3, True)
    assert said in result.err.splitlines()[0]


def test_a_command_of_a_plugin_runs_and_one_with_a_core_name_is_left_out_with_a_line(
    install: Installs,
) -> None:
    points = "\n".join(f"{name} = strange_plugin:command" for name in ("greet", "check", "new"))
    install("attnbench.commands", points, COMMANDS)
    greeted = run("greet")
    assert (greeted.code, greeted.out) == (0, "hello\n")
    for command, code in (("check", 0), ("new", 2)):
        result = checked() if command == "check" else run(command)
        assert (result.code, "hello" in result.out) == (code, False)
        start = f"warning: strange 1.0 brings a command {command!r}, which is built in"
        assert result.err.startswith(start)


def test_a_command_that_raises_is_one_line(install: Installs) -> None:
    source = COMMANDS.replace('print("hello")', "raise KeyError('x')")
    install("attnbench.commands", "greet = strange_plugin:command", source)
    result = run("greet")
    assert result.code == 3
    assert result.err == "attnbench: the command 'greet' of strange 1.0 failed: KeyError: 'x'\n"
