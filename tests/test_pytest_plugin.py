"""The pytest plugin and the decorator, run in projects of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BAD = Path(__file__).parent / "bad_subjects.py"
ONE = "--attnbench=scaled_dot"
SUM = "sum_to_one or keeps_the_contract or unit_variance or bounded_by_one"


SERVER = """
import json, os, sys
import pytest, torch

for line in sys.stdin:
    folder, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        sys.path.insert(0, folder)
        for stream in (1, 2):
            os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs pytest in children, which need not import torch anew."""


@dataclass(frozen=True)
class Run:
    code: int
    text: str

    @property
    def counts(self) -> str:
        return self.text.strip().splitlines()[-1].partition(" in ")[0]


@dataclass(frozen=True)
class Project:
    folder: Path
    server: subprocess.Popen[str]

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def pytest(self, *arguments: str) -> Run:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        printed = self.folder / "printed"
        printed.unlink(missing_ok=True)
        print(json.dumps([str(self.folder), arguments]), file=self.server.stdin, flush=True)
        return Run(int(self.server.stdout.readline()), printed.read_text())


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    # Hypothesis keeps no failure where it finds itself in CI, which it tells by these
    of_ci = ("CI", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI", "GITHUB_ACTIONS")
    usual = {name: value for name, value in os.environ.items() if name not in of_ci}
    pipe, command = subprocess.PIPE, [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=usual) as process:
        yield process


@pytest.fixture
def project(tmp_path: Path, server: subprocess.Popen[str]) -> Project:
    made = Project(tmp_path, server)
    made.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    made.write("test_own.py", "def test_own(): pass\n")
    made.write("bad_subjects.py", BAD.read_text())
    return made


def test_it_does_nothing_and_imports_nothing_unless_asked(project: Project) -> None:
    project.write(
        "test_own.py",
        "import sys\n"
        "def test_own():\n"
        "    assert 'attnbench.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'attnbench.registry', 'attnbench.checking'} & set(sys.modules)\n"
        "    assert 'hypothesis' not in sys.modules\n",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest"]
    run = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False)
    assert (run.returncode, "1 passed" in run.stdout) == (0, True), run.stdout + run.stderr


def test_each_invariant_of_each_subject_is_a_test_with_an_id_and_skips_have_reasons(
    project: Project,
) -> None:
    run = project.pytest(ONE, "-k", SUM, "-vv", "-rs")
    assert run.code == 0, run.text
    assert "attnbench[scaled_dot-weights_sum_to_one]" in run.text
    assert "attnbench[scaled_dot-bounded_by_one] SKIPPED" in run.text
    assert ": law not declared" in run.text
    assert "test_own" not in run.text


def test_a_bare_option_leaves_the_path_behind_it_alone_and_means_all_subjects(
    project: Project,
) -> None:
    run = project.pytest("--attnbench", "test_own.py", "--collect-only")
    assert run.code == 0, run.text
    for name in ("additive", "gaussian", "scaled_dot"):
        assert f"attnbench[{name}-weights_sum_to_one]" in run.text
    assert "test_own.py::test_own" in run.text


def test_several_addresses_with_options_and_files_can_be_named(project: Project) -> None:
    names = "scaled_dot, bad_subjects.py:RIGHT, multi_head(heads=4, kv_heads=2)"
    run = project.pytest(f"--attnbench={names}", "-k", "keeps_the_contract", "-vv")
    assert run.code == 0, run.text
    for name in ("scaled_dot", "Right", "multi_head(heads=4, kv_heads=2)"):
        assert f"attnbench[{name}-keeps_the_contract]" in run.text


def test_a_failure_is_the_outcome_without_a_traceback(project: Project) -> None:
    run = project.pytest("--attnbench=bad_subjects.py:SHAPE", "-k", "contract", "--tb=long")
    assert run.code == 1, run.text
    assert "WrongShape returned scores of shape (1,), but query (1, 1)" in run.text
    assert "smallest counterexample: leading sizes none, L=1, S=1" in run.text
    assert "Traceback" not in run.text
    assert "hypothesis/" not in run.text


def test_a_subject_without_a_usable_answer_fails_once_and_skips_the_rest(project: Project) -> None:
    run = project.pytest("--attnbench=bad_subjects.py:SHAPE", "-rs")
    assert run.counts.startswith("1 failed, 1 passed"), run.text
    assert "not run: WrongShape returned scores of shape" in run.text


def test_an_unknown_name_is_one_error_that_offers_the_nearest(project: Project) -> None:
    run = project.pytest("--attnbench=scaled_dt")
    assert run.code == 2, run.text
    assert "Did you mean 'scaled_dot'" in run.text
    assert "Traceback" not in run.text


def test_it_works_under_xdist(project: Project) -> None:
    run = project.pytest(ONE, "-n", "2", "-k", f"{SUM} or own")
    assert run.code == 0, run.text
    alone = project.pytest(ONE, "-k", f"{SUM} or own")
    assert alone.counts.partition(", ")[0] == run.counts.partition(", ")[0], run.text


DECORATED = """
import attnbench
from bad_subjects import NAN, RIGHT

@attnbench.parametrize_with_checks(
    ["scaled_dot", RIGHT, NAN], invariants=["keeps_the_contract", "bounded_by_one"]
)
def test_attention(subject, check):
    check(subject)
"""


def test_the_decorator_makes_a_test_of_each_check_of_addresses_and_specs(project: Project) -> None:
    project.write("test_own.py", DECORATED)
    run = project.pytest("-vv", "-rs")
    assert run.code == 1, run.text
    assert "test_attention[scaled_dot-keeps_the_contract] PASSED" in run.text
    assert "test_attention[Right-keeps_the_contract] PASSED" in run.text
    assert "test_attention[GivesNan-keeps_the_contract] FAILED" in run.text
    assert "test_attention[Right-bounded_by_one] SKIPPED" in run.text
    assert ": law not declared" in run.text
    assert "GivesNan gives output[0, 0] = nan for finite inputs" in run.text


def test_profile_and_seed_of_the_command_line_hold_beside_the_decorator_too(
    project: Project,
) -> None:
    project.write(
        "test_own.py",
        "import attnbench\n"
        "@attnbench.parametrize_with_checks(['dot'], invariants=['keeps_the_contract'], seed=1)\n"
        "def test_attention(subject, check):\n"
        "    assert False, (check.profile, check.seed)\n",
    )
    assert "('quick', 1)" in project.pytest().text
    options = ("--attnbench-profile=default", "--attnbench-seed=5")
    assert "('quick', 7)" in project.pytest("--hypothesis-seed=7").text
    assert "('default', 5)" in project.pytest("--hypothesis-seed=7", *options).text
    run = project.pytest("--attnbench-profile=quik")
    assert run.code == 4
    assert "no profile is called 'quik'. Did you mean 'quick'" in run.text


PROFILED = """
from hypothesis import settings

settings.register_profile("small", max_examples=3)
"""


def test_the_seed_and_settings_profile_and_statistics_of_hypothesis_work(project: Project) -> None:
    project.write("conftest.py", PROFILED)
    project.write(
        "test_own.py",
        "import attnbench\n"
        "@attnbench.parametrize_with_checks(['dot'], invariants=['weights_sum_to_one'])\n"
        "def test_attention(subject, check):\n"
        "    raise AssertionError(check.outcome(subject).reason)\n",
    )
    assert "scheduled, 4 drawn" in project.pytest().text
    run = project.pytest("--hypothesis-profile=small", "--hypothesis-show-statistics")
    assert "3 drawn" in run.text
    assert "during generate phase" in run.text
    shown = project.pytest(ONE, "-k", "sum_to_one", "--hypothesis-show-statistics").text
    assert "attnbench[scaled_dot-weights_sum_to_one]:" in shown
    assert "during generate phase" in shown


def test_what_failed_is_kept_where_pytest_runs_and_tried_first_the_next_time(
    project: Project,
) -> None:
    bad = ("--attnbench=bad_subjects.py:NAN", "-k", "keeps_the_contract")
    assert project.pytest(*bad).code == 1
    assert any(path.is_file() for path in (project.folder / ".hypothesis" / "examples").rglob("*"))
    assert project.pytest(*bad, "--attnbench-seed=9").code == 1


def test_functions_of_a_style_are_named_with_it(project: Project) -> None:
    project.write(
        "library.py",
        "from torch.nn.functional import scaled_dot_product_attention\n\n\n"
        "def mine(query, key, value, attn_mask=None):\n"
        "    return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)\n\n\n"
        "def untold(query, key, value):\n"
        "    raise NotImplementedError\n",
    )
    named = ("--attnbench=library.py:mine", "-k", "mine and keeps_the_contract")
    result = project.pytest(*named, "--attnbench-as=sdpa")
    assert "1 passed" in result.counts
    missing = project.pytest("--attnbench=library.py:untold", "-k", "untold")
    assert "untold cannot be called" in missing.text
    bare = project.pytest("--attnbench", "--attnbench-as=sdpa")
    assert "--attnbench names none" in bare.text
