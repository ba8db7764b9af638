"""The pytest plugin and the decorator, run in projects of their own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

BAD = Path(__file__).parent / "bad_subjects.py"
ONE = "--attnbench=scaled_dot"
SUM = "sum_to_one or keeps_the_contract or unit_variance or bounded_by_one"


@dataclass(frozen=True)
class Run:
    code: int
    text: str

    @property
    def counts(self) -> str:
        return self.text.strip().splitlines()[-1].partition(" in ")[0]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    (tmp_path / "bad_subjects.py").write_text(BAD.read_text())
    return tmp_path


def pytest_in(folder: Path, *arguments: str) -> Run:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return Run(done.returncode, done.stdout + done.stderr)


def test_it_does_nothing_and_imports_nothing_unless_asked(project: Path) -> None:
    (project / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    assert 'attnbench.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'attnbench.registry', 'attnbench.checking'} & set(sys.modules)\n"
        "    assert 'hypothesis' not in sys.modules\n"
    )
    run = pytest_in(project, "-p", "no:hypothesispytest")
    assert (run.code, run.counts) == (0, "1 passed"), run.text


def test_each_invariant_of_each_subject_is_a_test_with_an_id_and_skips_have_reasons(
    project: Path,
) -> None:
    run = pytest_in(project, ONE, "-k", SUM, "-vv", "-rs")
    assert run.code == 0, run.text
    assert "attnbench[scaled_dot-weights_sum_to_one]" in run.text
    assert "attnbench[scaled_dot-bounded_by_one] SKIPPED" in run.text
    assert ": law not declared" in run.text
    assert "test_own" not in run.text


def test_a_bare_option_leaves_the_path_behind_it_alone_and_means_all_subjects(
    project: Path,
) -> None:
    run = pytest_in(project, "--attnbench", "test_own.py", "--collect-only")
    assert run.code == 0, run.text
    for name in ("additive", "gaussian", "scaled_dot"):
        assert f"attnbench[{name}-weights_sum_to_one]" in run.text
    assert "test_own.py::test_own" in run.text


def test_several_addresses_with_options_and_files_can_be_named(project: Path) -> None:
    names = "scaled_dot, bad_subjects.py:RIGHT, multi_head(heads=4, kv_heads=2)"
    run = pytest_in(project, f"--attnbench={names}", "-k", "keeps_the_contract", "-vv")
    assert run.code == 0, run.text
    for name in ("scaled_dot", "Right", "multi_head(heads=4, kv_heads=2)"):
        assert f"attnbench[{name}-keeps_the_contract]" in run.text


def test_a_failure_is_the_outcome_without_a_traceback(project: Path) -> None:
    run = pytest_in(project, "--attnbench=bad_subjects.py:SHAPE", "-k", "contract", "--tb=long")
    assert run.code == 1, run.text
    assert "WrongShape returned scores of shape (1,), but query (1, 1)" in run.text
    assert "smallest counterexample: leading sizes none, L=1, S=1" in run.text
    assert "Traceback" not in run.text
    assert "hypothesis/" not in run.text


def test_a_subject_without_a_usable_answer_fails_once_and_skips_the_rest(project: Path) -> None:
    run = pytest_in(project, "--attnbench=bad_subjects.py:SHAPE", "-rs")
    assert run.counts.startswith("1 failed, 1 passed"), run.text
    assert "not run: WrongShape returned scores of shape" in run.text


@pytest.mark.long
def test_a_subject_without_a_usable_answer_fails_once_where_the_contract_is_deselected(
    project: Path,
) -> None:
    run = pytest_in(project, "--attnbench=bad_subjects.py:SHAPE", "-k", "layouts or sum_to_one")
    assert run.code == 1, run.text
    assert "keeps_the_contract" in run.text
    assert "WrongShape returned scores of shape" in run.text
    assert run.counts.startswith("1 failed"), run.text
    assert "skipped" in run.counts


def test_an_unknown_name_is_one_error_that_offers_the_nearest(project: Path) -> None:
    run = pytest_in(project, "--attnbench=scaled_dt")
    assert run.code == 2, run.text
    assert "Did you mean 'scaled_dot'" in run.text
    assert "Traceback" not in run.text


def test_it_works_under_xdist(project: Path) -> None:
    run = pytest_in(project, ONE, "-n", "2", "-k", f"{SUM} or own")
    assert run.code == 0, run.text
    alone = pytest_in(project, ONE, "-k", f"{SUM} or own")
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


def test_the_decorator_makes_a_test_of_each_check_of_addresses_and_specs(project: Path) -> None:
    (project / "test_own.py").write_text(DECORATED)
    run = pytest_in(project, "-vv", "-rs")
    assert run.code == 1, run.text
    assert "test_attention[scaled_dot-keeps_the_contract] PASSED" in run.text
    assert "test_attention[Right-keeps_the_contract] PASSED" in run.text
    assert "test_attention[GivesNan-keeps_the_contract] FAILED" in run.text
    assert "test_attention[Right-bounded_by_one] SKIPPED" in run.text
    assert ": law not declared" in run.text
    assert "GivesNan gives output[0, 0] = nan for finite inputs" in run.text


def test_profile_and_seed_of_the_command_line_hold_beside_the_decorator_too(project: Path) -> None:
    (project / "test_own.py").write_text(
        "import attnbench\n"
        "@attnbench.parametrize_with_checks(['dot'], invariants=['keeps_the_contract'], seed=1)\n"
        "def test_attention(subject, check):\n"
        "    assert False, (check.profile, check.seed)\n"
    )
    assert "('quick', 1)" in pytest_in(project).text
    options = ("--attnbench-profile=default", "--attnbench-seed=5")
    assert "('quick', 7)" in pytest_in(project, "--hypothesis-seed=7").text
    assert "('default', 5)" in pytest_in(project, "--hypothesis-seed=7", *options).text
    run = pytest_in(project, "--attnbench-profile=quik")
    assert run.code == 4
    assert "no profile is called 'quik'. Did you mean 'quick'" in run.text


PROFILED = """
from hypothesis import settings

settings.register_profile("small", max_examples=3)
"""


def test_the_seed_and_settings_profile_and_statistics_of_hypothesis_work(project: Path) -> None:
    (project / "conftest.py").write_text(PROFILED)
    (project / "test_own.py").write_text(
        "import attnbench\n"
        "@attnbench.parametrize_with_checks(['dot'], invariants=['weights_sum_to_one'])\n"
        "def test_attention(subject, check):\n"
        "    raise AssertionError(check.outcome(subject).reason)\n"
    )
    assert "scheduled, 4 drawn" in pytest_in(project).text
    run = pytest_in(project, "--hypothesis-profile=small", "--hypothesis-show-statistics")
    assert "3 drawn" in run.text
    assert "during generate phase" in run.text
    shown = pytest_in(project, ONE, "-k", "sum_to_one", "--hypothesis-show-statistics").text
    assert "attnbench[scaled_dot-weights_sum_to_one]:" in shown
    assert "during generate phase" in shown


def test_what_failed_is_kept_where_pytest_runs_and_tried_first_the_next_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hypothesis keeps nothing where it finds itself in CI, which it tells by these
    for name in ("CI", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    bad = ("--attnbench=bad_subjects.py:NAN", "-k", "keeps_the_contract")
    assert pytest_in(project, *bad).code == 1
    assert any(path.is_file() for path in (project / ".hypothesis" / "examples").rglob("*"))
    assert pytest_in(project, *bad, "--attnbench-seed=9").code == 1


def test_functions_of_a_style_are_named_with_it(project: Path) -> None:
    (project / "library.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention\n\n\n"
        "def mine(query, key, value, attn_mask=None):\n"
        "    return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)\n\n\n"
        "def untold(query, key, value):\n"
        "    raise NotImplementedError\n"
    )
    named = ("--attnbench=library.py:mine", "-k", "mine and keeps_the_contract")
    result = pytest_in(project, *named, "--attnbench-as=sdpa")
    assert "1 passed" in result.counts
    missing = pytest_in(project, "--attnbench=library.py:untold", "-k", "untold")
    assert "untold cannot be called" in missing.text
    bare = pytest_in(project, "--attnbench", "--attnbench-as=sdpa")
    assert "--attnbench names none" in bare.text
