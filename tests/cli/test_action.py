"""The steps of ``action.yml``, run as a runner does, for recorded events in a scratch repository.

Nothing is fetched but from a repository beside it, and nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli_runs import git

ROOT = Path(__file__).resolve().parents[2]
EVENTS = Path(__file__).with_name("events")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
CODE = """\
import torch
from attnbench import ScoringSpec


class Mine(torch.nn.Module):
    def forward(self, query, key):
        scale = query.shape[-1] ** -0.5
        return (query * scale) @ key.mT


SPEC = ScoringSpec(name="mine", make=lambda q, k: Mine(), equal_sizes=True, laws=["unit_variance"])
"""
TEST = """\
import attnbench
from mine import SPEC

@attnbench.parametrize_with_checks([SPEC], invariants=["unit_variance"])
def test_it(subject, check):
    check(subject)
"""
ONE = "--invariant unit_variance"


@dataclass(frozen=True)
class Job:
    """What a runner shows of a job."""

    code: int
    log: str
    summary: str
    ran: list[str]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone without history, as ``actions/checkout`` makes it, whose main branch is right."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    (origin / "mine.py").write_text(CODE)
    (origin / "test_mine.py").write_text(TEST)
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "right")
    git(origin, "checkout", "-q", "-b", "change")
    (origin / "mine.py").write_text(CODE.replace("** -0.5", "** -0.25"))
    git(origin, "commit", "-q", "-a", "-m", "a bug")
    git(tmp_path, "clone", "-q", "--depth=1", "--branch=change", origin.as_uri(), str(clone))
    return clone


def run_job(folder: Path, event: str, **given: str) -> Job:
    """Run the action's steps in a folder for an event."""
    content = json.loads((EVENTS / f"{event}.json").read_text("utf-8"))
    base = content.get("pull_request", {}).get("base", {}).get("ref", "")
    inputs = {name: about["default"] for name, about in ACTION["inputs"].items()} | given
    files = {f"GITHUB_{name}": folder.parent / name for name in ("STEP_SUMMARY", "OUTPUT")}
    variables = {
        **os.environ,
        **{name: str(path) for name, path in files.items()},
        "GITHUB_WORKSPACE": str(folder),
        "RUNNER_TEMP": str(folder.parent),
        "GITHUB_BASE_REF": base,
        "GITHUB_EVENT_PATH": str(EVENTS / f"{event}.json"),
        "PYTHONDONTWRITEBYTECODE": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    code, log, ran = 0, "", []
    for step in ACTION["runs"]["steps"]:
        if not chosen(step.get("if", "success()"), inputs, base, failed=code != 0):
            continue
        known = {"inputs": inputs, "github": {"base_ref": base}}
        env = {name: filled(text, known) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder, env=variables | env, capture_output=True, encoding="utf-8",
        )  # fmt: skip
        code, log = code or done.returncode, log + done.stdout + done.stderr
        ran.append(step["name"])
    summary = files["GITHUB_STEP_SUMMARY"]
    return Job(code, log, summary.read_text("utf-8") if summary.exists() else "", ran)


def filled(text: str, known: dict[str, dict[str, str]]) -> str:
    """A text with its expressions replaced by their values."""
    return re.sub(r"\$\{\{ (\w+)\.([\w-]+) \}\}", lambda found: known[found[1]][found[2]], text)


def chosen(condition: str, inputs: dict[str, str], base: str, *, failed: bool) -> bool:
    """Whether a step runs: a condition without a function for the job's state needs success."""
    text = re.sub(r"inputs\.([\w-]+)", lambda found: repr(inputs[found[1]]), condition)
    text = text.replace("github.base_ref", repr(base)).replace("&&", "and").replace("||", "or")
    state = {"success": lambda: not failed, "failure": lambda: failed}
    asked = "success()" in condition or "failure()" in condition
    value: Any = eval(text, state)
    return bool(value) and (asked or not failed)


def test_a_pull_request_with_a_bug_gets_an_annotation_at_its_line_and_a_summary(
    checkout: Path,
) -> None:
    job = run_job(checkout, "pull_request", install="", targets="mine.py:SPEC\n", arguments=ONE)
    assert job.code == 1
    assert job.ran == ["Fetch the base branch", "Check"]
    (annotation,) = [line for line in job.log.splitlines() if line.startswith("::error")]
    assert annotation.startswith("::error file=mine.py,line=6,title=mine%3A unit_variance::")
    assert "### ❌ attnbench: 1 failed" in job.summary
    assert "\n\nRun it: `attnbench check mine.py:SPEC --invariant unit_variance" in job.summary
    log = json.loads((checkout.parent / "attnbench.sarif").read_text("utf-8"))
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 6


def test_a_pytest_run_with_a_bug_gets_the_same_annotation(checkout: Path) -> None:
    run = "test_mine.py -q -p no:cacheprovider"
    job = run_job(checkout, "pull_request", install="", pytest=run)
    assert job.code == 1
    assert job.ran == ["Fetch the base branch", "Test"]
    (annotation,) = [line for line in job.log.splitlines() if line.startswith("::error")]
    assert annotation.startswith("::error file=mine.py,line=6,title=mine%3A unit_variance::")
    assert "### ❌ attnbench: 1 failed" in job.summary


def test_a_push_of_what_is_right_is_green_and_says_so(checkout: Path) -> None:
    (checkout / "mine.py").write_text(CODE)
    job = run_job(
        checkout, "push", install="", targets="mine.py:SPEC", arguments=ONE, compare="true"
    )
    assert (job.code, job.ran) == (0, ["Check"])
    assert job.summary.startswith("### ✅ attnbench: 1 passed")
    assert "::error" not in job.log


def test_the_speed_is_compared_with_the_base_branch_also_if_a_check_failed(checkout: Path) -> None:
    (checkout / "mine.py").write_text(CODE.replace("** -0.5", "** -0.25").replace(
        "return (", "key.double().exp().exp().exp()\n        return ("
    ))  # fmt: skip
    job = run_job(
        checkout, "pull_request", install="", targets="mine.py:SPEC", arguments=ONE,
        compare="true", **{"compare-arguments": "--budget 20"},
    )  # fmt: skip
    assert job.ran == ["Fetch the base branch", "Check", "Compare with the base branch"]
    assert job.code == 1
    assert "the working tree (" in job.summary
    assert "1 changed file)" in job.summary  # mine.py alone: the steps write nothing beside it
    assert "### attnbench: speed against `main`" in job.summary
    assert "slower" in job.summary.partition("### attnbench: speed")[2]


def test_every_input_and_output_is_described_and_no_input_is_pasted_into_a_script() -> None:
    for about in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert about["description"]
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]  # a title of a pull request would be run as code
