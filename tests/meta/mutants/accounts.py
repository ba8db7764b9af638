"""What all invariants said of a right implementation on a seed, in one line that can be committed.

``python -m tests.meta.mutants.matrix right --accounts results/thorough_right.jsonl`` adds a line
for each subject and seed that is done, and does not run again what has one, unless something was
neither passed nor skipped.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.meta.mutants.measure import Job, Result, listed

__all__ = ["Account", "accounts_of", "add_accounts", "head", "is_done", "read_accounts", "summary"]

Key = tuple[str, str, str, int | None]
"""Source, subject, profile and seed."""


@dataclass(frozen=True)
class Account:
    """One subject on one seed.

    Args:
        source, subject, profile, seed: as in :class:`~tests.meta.mutants.measure.Job`.
        commit: the commit that ran.
        passed, skipped: numbers of invariants.
        others: the invariants with another status, and that.
        seconds: sum over the invariants.
    """

    source: str
    subject: str
    profile: str
    seed: int | None
    commit: str
    passed: int
    skipped: int
    others: dict[str, str]
    seconds: float

    @property
    def key(self) -> Key:
        """What the account is of."""
        return self.source, self.subject, self.profile, self.seed


def accounts_of(results: Iterable[Result], names: Sequence[str], commit: str) -> list[Account]:
    """The accounts of those subjects on which all named invariants have run."""
    groups: dict[Key, dict[str, Result]] = defaultdict(dict)
    for r in results:
        groups[r.source, r.subject, r.profile, r.seed][r.invariant] = r
    found = []
    for key, group in groups.items():
        if not set(names) <= set(group):
            continue
        count = Counter(r.status for r in group.values())
        others = {
            name: r.status for name, r in group.items() if r.status not in ("passed", "skipped")
        }
        seconds = round(sum(r.seconds for r in group.values()), 1)
        found.append(Account(*key, commit, count["passed"], count["skipped"], others, seconds))
    return found


def read_accounts(path: Path) -> dict[Key, Account]:
    """The last account of each subject and seed in a file; none if it is not there."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {one.key: one for one in (Account(**json.loads(line)) for line in lines)}


def is_done(kept: dict[Key, Account], job: Job) -> bool:
    """Whether a job has an account in which nothing is left to be explained."""
    name, _ = listed(job.source)[job.subject]
    account = kept.get((job.source, name, job.profile, job.seed))
    return account is not None and not account.others


def add_accounts(path: Path, found: Iterable[Account]) -> None:
    """Append the accounts that a file does not have yet."""
    known = read_accounts(path)
    with path.open("a", encoding="utf-8") as file:
        for one in found:
            if one.key not in known or known[one.key].others:
                file.write(json.dumps(asdict(one), ensure_ascii=False) + "\n")


def summary(accounts: Iterable[Account]) -> str:
    """How much is done, and whom something was said against."""
    done = list(accounts)
    good = sum(one.passed + one.skipped for one in done)
    hours = sum(one.seconds for one in done) / 3600
    accused = [f"{one.subject} (seed {one.seed}): {one.others}" for one in done if one.others]
    return "\n".join(
        [
            f"{len(done)} subjects and seeds, {good} outcomes passed or skipped, "
            f"{hours:.1f} hours of one core; accused: {len(accused)}",
            *accused,
        ]
    )


def head(root: Path) -> str:
    """The commit of a working tree, marked if files differ from it."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
