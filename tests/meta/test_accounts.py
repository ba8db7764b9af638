"""The committed account of what right implementations passed."""

import json
import subprocess
import sys
from pathlib import Path

from attnbench_zoo import blind_entries

from tests.meta.mutants.accounts import (
    accounts_of,
    add_accounts,
    is_done,
    read_accounts,
    summary,
)
from tests.meta.mutants.measure import Job, Result, listed

NAMES = ("weights_sum_to_one", "row_alone", "variance")
TWIN = listed("twins")[0][0]


def results(*statuses: str, seed: int = 0) -> list[Result]:
    return [
        Result("twins", TWIN, name, "thorough", seed, status, 1.5, "", None)
        for name, status in zip(NAMES, statuses, strict=False)
    ]


def job(seed: int) -> Job:
    return Job(0, "twins", NAMES, "thorough", seed)


def test_only_a_subject_on_which_all_have_run_is_accounted_for() -> None:
    some = [*results("passed", "skipped"), *results("passed", "passed", "skipped", seed=1)]
    (account,) = accounts_of(some, NAMES, "abc")
    assert (account.seed, account.passed, account.skipped, account.seconds) == (1, 2, 1, 4.5)
    assert account.commit == "abc"


def test_what_has_an_account_is_done_and_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "accounts.jsonl"
    found = accounts_of(results("passed", "passed", "passed"), NAMES, "abc")
    add_accounts(path, found)
    add_accounts(path, found)
    assert len(path.read_text().splitlines()) == 1
    assert is_done(read_accounts(path), job(0))
    assert not is_done(read_accounts(path), job(1))


def test_an_accusation_is_told_and_runs_again_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "accounts.jsonl"
    add_accounts(path, accounts_of(results("passed", "failed", "timeout"), NAMES, "abc"))
    kept = read_accounts(path)
    assert not is_done(kept, job(0))
    assert "accused: 1" in summary(kept.values())
    assert "{'row_alone': 'failed', 'variance': 'timeout'}" in summary(kept.values())
    add_accounts(path, accounts_of(results("passed", "passed", "passed"), NAMES, "def"))
    assert is_done(read_accounts(path), job(0))
    assert "accused: 0" in summary(read_accounts(path).values())


def test_the_manual_says_what_the_committed_account_says_of_two_seeds() -> None:
    root = Path(__file__).parents[2]
    accounts = read_accounts(root / "results" / "thorough_right.jsonl").values()
    kept = [a for a in accounts if a.seed in (0, 1)]
    page = " ".join((root / "docs" / "explanation" / "checks.md").read_text().split())
    right = len({(a.source, a.subject) for a in kept})
    assert f"of {right} right implementations was accused, in" in page
    assert f"in {sum(a.passed for a in kept):,} outcomes that passed" in page
    assert not any(a.others for a in kept)


def test_a_mistaken_argument_is_told_in_one_line() -> None:
    command = ["-m", "tests.meta.mutants.matrix", "right", "--invariants", "wheights_sum_to_one"]
    run = subprocess.run(
        [sys.executable, *command],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: no invariant is called 'wheights_sum_to_one'.")
    assert run.stderr.count("\n") == 1


def test_the_manual_says_what_the_committed_verdicts_say_of_the_blind_part() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "results/blind.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = [json.loads(line) for line in lines]
    assert sorted(one["entry"] for one in verdicts) == sorted(e.name for e in blind_entries())
    page = (root / "docs" / "explanation" / "checks.md").read_text(encoding="utf-8")
    killed, of = sum(not one["accepted"] for one in verdicts), len(verdicts)
    assert f"{killed} of {of} ({100 * killed / of:.1f} %)" in page
