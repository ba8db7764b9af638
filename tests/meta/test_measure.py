"""What is measured of the zoo, and what the manual says of it."""

import json
from pathlib import Path
from subprocess import CompletedProcess

from attnbench_zoo import blind_entries

from tests.cli_runs import python

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "explanation" / "checks.md").read_text("utf-8").split())


def measure(*arguments: str) -> CompletedProcess[str]:
    return python("-m", "tests.meta.measure", *arguments, folder=ROOT)


def test_what_is_measured_is_kept_and_not_run_again(tmp_path: Path) -> None:
    work = tmp_path / "measured.jsonl"
    some = ("--only", "scale_missing", "--invariants", "agrees_with_scalar_reference")
    first = measure("killed", *some, "--work", str(work))
    assert "1 of 1" in first.stdout, first.stderr
    assert "seed None: 100.0% killed; alive: none" in first.stdout
    assert "1 of 1" not in measure("killed", *some, "--work", str(work)).stdout
    assert [json.loads(line)["status"] for line in work.read_text().splitlines()] == ["failed"]


def test_a_mistaken_argument_is_told_in_one_line() -> None:
    run = measure("right", "--invariants", "wheights_sum_to_one")
    assert run.returncode == 2
    assert run.stderr.startswith("error: no invariant is called 'wheights_sum_to_one'.")
    assert run.stderr.count("\n") == 1


def test_the_manual_says_what_the_committed_account_says_of_two_seeds() -> None:
    lines = (ROOT / "results" / "thorough_right.jsonl").read_text("utf-8").splitlines()
    told = {(a["source"], a["subject"], a["seed"]): a for a in map(json.loads, lines)}
    kept = [account for account in told.values() if account["seed"] in (0, 1)]
    right = len({(a["source"], a["subject"]) for a in kept})
    assert f"of {right} right implementations was accused, in" in PAGE
    assert f"in {sum(a['passed'] for a in kept):,} outcomes that passed" in PAGE
    assert not any(account["others"] for account in kept)


def test_the_manual_says_what_the_committed_verdicts_say_of_the_blind_part() -> None:
    lines = (ROOT / "results" / "blind.jsonl").read_text("utf-8").splitlines()
    verdicts = [json.loads(line) for line in lines]
    assert sorted(one["entry"] for one in verdicts) == sorted(e.name for e in blind_entries())
    killed, of = sum(not one["accepted"] for one in verdicts), len(verdicts)
    assert f"{killed} of {of} ({100 * killed / of:.1f} %)" in PAGE
