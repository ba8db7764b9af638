"""What a page or a docstring names is there, and README stays short."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from attnbench.cases.case import LAYER_MASKS, LAYOUTS, MASKS, REGIMES
from attnbench.registry.catalog import registry

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = "py|md|toml|json|yml|png|cpp|h|html|css|js|ini|template"
FOLDERS = "attnbench|plugins|benchmarks|tests|docs|results|.github|.ci"
PATH = re.compile(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w./-]*\w\.(?:{SUFFIXES})\b")
PAGE = re.compile(r"(?<![\w/.-])[A-Z]{3,}(?:_[A-Z]+)*\.md\b")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
MADE_BY_USERS = {
    "benchmarks/attention.py",
    "benchmarks/suite.py",  # attnbench new
    "plugins/attnbench_plugins/scorings/cosine.py",
    "tests/test_my_layers.py",  # attnbench new --layer
    "tests/test_my_scores.py",  # attnbench new
}
"""Files that a page tells a user to write, or that a command writes for them."""
MADE_WITH_THE_MANUAL = {"feed.xml", "play.html"}
"""Files that docs/hooks.py writes, or takes from the classroom."""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def named_files(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    named = set(PATH.findall(text)) | set(PAGE.findall(text))
    return named - MADE_BY_USERS


@pytest.mark.parametrize("path", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(path: Path) -> None:
    links = {link for link in LINK.findall(path.read_text(encoding="utf-8")) if ":" not in link}
    missing = {link for link in links if not (path.parent / link).exists()}
    assert missing - MADE_WITH_THE_MANUAL == set()


def test_every_file_that_is_named_is_there() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked("*.md", "*.py", "*.toml", "*.ini", "*.yml", "*.template")
        if path != Path(__file__) and "distributions" not in path.parts
        for name in named_files(path)
        if not (ROOT / name).exists() and not (path.parent / name).exists()
    }
    assert missing == set()


def test_the_manual_lists_every_invariant_and_law_and_what_it_catches() -> None:
    listed = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["invariants"]()
    names = re.findall(r"^- \[\*\*`(\w+)`\*\*\]\(#\1\)", listed, re.MULTILINE)
    assert sorted(names) == sorted(invariant.name for invariant in registry().invariants())
    assert listed.count("Catches: ") == len(names)


def test_the_manual_explains_every_word_of_a_case() -> None:
    rows = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["cases"]()
    tables = (MASKS, LAYER_MASKS, LAYOUTS, REGIMES)
    assert re.findall(r"\| `(\w+)` \|", rows) == [word for table in tables for word in table]
