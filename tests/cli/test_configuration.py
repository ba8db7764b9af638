"""The table [tool.attnbench]: its keys, its errors, and what it changes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from attnbench.cli import main
from attnbench.cli.configuration import check_defaults
from attnbench.errors import UsageError

GOOD = """
targets = ["scaled_dot"]
profile = "quick"
invariants = ["weights_sum_to_one", "unit_variance"]
[tool.attnbench.exempt]
"scaled_dot: unit_variance" = "we like it so"
"""
WRONG = {
    "profil = 'quick'": "has no key 'profil'. Did you mean 'profile'?",
    "profile = 3": "says profile = 3, which should be a text.",
    "targets = 'scaled_dot'": 'says targets = "scaled_dot", which should be a list of texts.',
    "targets = [1]": "says targets = [1], which should be a list of texts.",
    "exempt = ['unit_variance']": "which should be a table of texts.",
    "exempt = {unit_variance = true}": 'says exempt = {"unit_variance": true}, which should be',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.attnbench]\n{text}\n")


def test_the_keys_become_the_options_of_check(folder: Path) -> None:
    assert check_defaults() == {}
    write(folder, GOOD)
    assert check_defaults() == {
        "targets": ["scaled_dot"],
        "profile": "quick",
        "invariant": ["weights_sum_to_one", "unit_variance"],
        "exempt": ["scaled_dot: unit_variance=we like it so"],
    }


@pytest.mark.parametrize("text", WRONG)
def test_what_the_table_cannot_hold_is_one_line_with_the_nearest_name(
    folder: Path, text: str
) -> None:
    write(folder, text)
    with pytest.raises(UsageError) as caught:
        check_defaults()
    assert str(caught.value).startswith("pyproject.toml: [tool.attnbench] ")
    assert WRONG[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_toml_is_one_line(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool")
    with pytest.raises(UsageError, match=r"cannot read pyproject\.toml: "):
        check_defaults()
    (folder / "pyproject.toml").write_text("[tool]\nattnbench = 3\n")
    with pytest.raises(UsageError, match="should be a table"):
        check_defaults()


def test_check_follows_the_table_and_its_options_override_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, GOOD)
    assert main(["check", "--json"]) == 0
    found = {o["invariant"]: o for o in json.loads(capsys.readouterr().out)["outcomes"]}
    assert {*found} == {"weights_sum_to_one", "unit_variance"}
    assert found["weights_sum_to_one"]["status"] == "passed"
    assert found["unit_variance"]["status"] == "skipped"
    assert found["unit_variance"]["reason"] == "exempt: we like it so"
    assert main(["check", "dot", "--invariant", "weights_sum_to_one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcomes"][0]["subject"] == "dot"


MINE = """
import torch
from attnbench import ScoringSpec


class Mine(torch.nn.Module):
    def forward(self, query, key):
        return query @ key.mT


SPEC = ScoringSpec(
    name="mine", make=lambda q, k: Mine(), equal_sizes=True, laws=["unit_variance"]
)
"""


def test_known_failures_are_written_into_the_table_and_taken_out_when_they_hold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(MINE)
    kept = (
        '[tool.attnbench.exempt]\n"soft: unit_variance" = "we like it so"\n\n[tool.other]\nx = 1\n'
    )
    (folder / "pyproject.toml").write_text(kept)
    asked = ["check", "mine.py:SPEC", "--invariant", "unit_variance"]
    assert main(asked) == 1
    assert main([*asked, "--update-exempt"]) == 0
    assert "known failures in pyproject.toml: 1" in capsys.readouterr().out
    tool = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]
    assert tool["other"] == {"x": 1}
    first, second = tool["attnbench"]["exempt"].items()
    assert first == ("soft: unit_variance", "we like it so")
    assert second[0] == "mine: unit_variance"
    assert second[1].startswith("known failure: ")
    assert main(asked) == 0
    assert "mine  no property holds, 1 is exempt" in capsys.readouterr().out
    (folder / "mine.py").write_text(MINE.replace("key.mT", "key.mT * key.shape[-1] ** -0.5"))
    assert main([*asked, "--update-exempt"]) == 0
    assert "known failures in pyproject.toml: 0" in capsys.readouterr().out
    assert (folder / "pyproject.toml").read_text() == kept
