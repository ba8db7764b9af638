"""Every code block of README and the manual is run.

Sybil finds the blocks and keeps one namespace a page, so that a page reads from start to end like a
session. It was chosen over pytest-examples, which finds Python blocks only: most of ours are
commands.

- ``python`` with ``title="file.py"`` writes that file into the page's own folder; without a title
  it is run there.
- ``console`` runs each line that begins with ``$ `` in that folder: ``attnbench`` in this process,
  whose children then need not import torch anew, and anything else in a shell. What stands below a
  command is compared with what it prints, with runs of blanks taken as one and ``...`` for
  anything. A command ends with exit code 0, unless ``# exits with N`` stands behind it.
- ``toml``, ``json`` and ``yaml`` have to parse.
- ``text`` is not code. Any other language is an error.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from sybil import Example
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer
from sybil.region import Region

from attnbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
INFO = re.compile(r'[ \t]*(?P<language>[\w-]*)(?: +title="(?P<title>[^"]+)")?[^\n]*\n')

INSTALLS = re.compile(
    r"(pip install|python3 (-m venv|bootstrap)|git clone|pre-commit|tox"
    r"|asv (run|continuous|publish))\b"
)
"""Commands that are not run here: they install, or measure for minutes.

What they do is run elsewhere: ``.ci/run`` is README's second command, ``tests/packaging`` installs
the wheel and a written plugin into a clean environment, ``tests/test_asv.py`` runs asv.
"""


def blocks(document: Document) -> Iterator[Region]:
    """Regions of the page's code blocks, each with the evaluator of its language."""
    for region in RawFencedCodeBlockLexer(INFO)(document):
        language = region.lexemes["language"]
        if language != "text":
            yield Region(region.start, region.end, region.lexemes, EVALUATORS[language])


def run_python(example: Example) -> None:
    source = example.parsed["source"]
    if example.parsed["title"]:
        path = Path(example.parsed["title"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return
    example.parsed = source
    PythonEvaluator()(example)


def run_console(example: Example) -> None:
    steps = re.split(r"^\$ ", "\n" + example.parsed["source"], flags=re.MULTILINE)
    assert not steps[0].strip(), f"output without a command: {steps[0]}"
    for step in steps[1:]:
        command, _, expected = step.replace("\\\n", "").partition("\n")
        if INSTALLS.search(command):
            continue
        run_command(command, expected)


def run_command(command: str, expected: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        run = own_command if command.startswith("attnbench ") else shell_command
        code, output = run(command)
    told = re.search(r"# exits with (\d+)", command)
    wanted_code = int(told[1]) if told else 0
    assert code == wanted_code, f"{command}\nended with {code}:\n{output}"
    if expected.strip():
        found = plain(output)
        # a line of "..." stands for any lines, none among them
        wanted = re.sub(r"(^|\n)\.\.\.(\n|$)", "...", plain(expected))
        matches = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
        assert matches, f"{command}\nprinted:\n{found}\ninstead of:\n{plain(expected)}"


def own_command(command: str) -> tuple[int, str]:
    """The exit code and the output of an ``attnbench`` command without shell syntax.

    Several pages begin with one check of one file, which is run once.
    """
    if not command.startswith("attnbench check "):
        return run_here(command)
    files = (path for path in sorted(Path().rglob("*")) if path.is_file())
    return checked(command, tuple((str(path), path.read_bytes()) for path in files))


@functools.cache
def checked(command: str, files: tuple[tuple[str, bytes], ...]) -> tuple[int, str]:
    """What a check in this folder ends with and prints; another one has the same files."""
    return run_here(command)


def run_here(command: str) -> tuple[int, str]:
    """What a command ends with and prints."""
    words = shlex.split(command, comments=True)
    assert not re.search(r"[|<>;&$`*]", "".join(words)), f"{command} needs a shell"
    output = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        patch.setattr(sys, "argv", words)
        # a command does not find modules of the folder that it runs in
        patch.setattr(sys, "path", [entry for entry in sys.path if entry != os.getcwd()])
        code = main(words[1:])
    return code, output.getvalue()


def shell_command(command: str) -> tuple[int, str]:
    """The exit code and the output of a command that a shell runs."""
    ended = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    return ended.returncode, ended.stdout


def plain(text: str) -> str:
    """The text without empty lines, and with runs of blanks and of rules as one blank."""
    lines = (re.sub(r"[\s─]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def parses(parse: Callable[[str], object]) -> Callable[[Example], None]:
    """An evaluator that only parses a block."""

    def evaluate(example: Example) -> None:
        assert parse(example.parsed["source"])

    return evaluate


EVALUATORS = {
    "python": run_python,
    "console": run_console,
    "toml": parses(tomllib.loads),
    "json": parses(json.loads),
    "yaml": parses(yaml.safe_load),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_block_does_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for example in Document.parse(str(page), blocks).examples():
        example.evaluate()


def test_a_block_that_says_something_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    for block in ("```console\n$ echo one\ntwo\n```\n", "```console\n$ exit 3\n```\n"):
        page.write_text(block)
        (example,) = Document.parse(str(page), blocks).examples()
        with pytest.raises(AssertionError, match=r"one|3"):
            example.evaluate()
