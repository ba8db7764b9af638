import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_distribution_is_whole_and_names_itself_throughout(
    here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "my-scores"]) == 0
    written = {str(p.relative_to(here / "my-scores")) for p in here.rglob("*") if p.is_file()}
    assert written == {
        ".gitignore",
        "README.md",
        "asv.conf.json",
        "benchmarks/__init__.py",
        "benchmarks/suite.py",
        "my_scores/__init__.py",
        "pyproject.toml",
        "tests/test_my_scores.py",
    }
    assert 'my_scores = "my_scores"' in (here / "my-scores/pyproject.toml").read_text()
    assert not any("$" in p.read_text() for p in here.rglob("*") if p.is_file())
    assert "attnbench check my_scores" in capsys.readouterr().out


def test_its_scoring_function_can_be_named(here: Any) -> None:
    assert main(["new", "my-scores", "--scoring", "warm_cosine", "--into", "sub/folder"]) == 0
    text = (here / "sub/folder/my-scores/my_scores/__init__.py").read_text()
    assert 'name="warm_cosine"' in text


def test_what_it_writes_passes_its_own_tests_before_it_is_installed(here: Any) -> None:
    main(["new", "my-scores"])
    code = (
        "import attnbench;"
        "from attnbench.registry.discovery import call_hooks; import my_scores;"
        "(spec,) = call_hooks(my_scores);"
        "report = attnbench.check(spec, profile='quick');"
        "assert report.ok, str(report); print(report.counts)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=here / "my-scores",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout


@pytest.mark.parametrize("name", ["my scores", "3d", "-x", "a/b", ""])
def test_an_impossible_name_is_one_clear_error(
    here: Any, capsys: pytest.CaptureFixture[str], name: Any
) -> None:
    assert main(["new", "--", name]) == 2
    assert "cannot name a distribution" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_nothing_that_is_there_is_overwritten(
    here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine").mkdir()
    assert main(["new", "mine"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_clear_error(
    here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("")
    assert main(["new", "mine", "--into", "file"]) == 2
    assert "cannot write" in capsys.readouterr().err
