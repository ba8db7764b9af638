"""What the manual says of what was measured on the zoo."""

import json
from pathlib import Path

from attnbench_zoo import blind_entries

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "explanation" / "checks.md").read_text("utf-8").split())


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
