"""Which invariant is skipped on which built-in subject: a new skip fails here.

The table is ``tests/meta/skips.txt``; after a skip that is meant, write it anew with
``python -m tests.meta.test_skips`` and read the difference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attnbench.checking.api import select_invariants
from attnbench.checking.runner import skip_reason
from attnbench.registry.catalog import registry
from attnbench.subject.lookup import installed

TABLE = Path(__file__).with_name("skips.txt")


def skips() -> str:
    """A line for each invariant that is skipped on a subject, but for laws not declared."""
    own = {name for name, _, plugin in registry().specs() if plugin.distribution == "attnbench"}
    subjects = [s for s in installed() if replace(s.address, options={}) in own]
    lines = []
    for invariant in sorted(select_invariants(None), key=lambda invariant: invariant.name):
        asked = [subject for subject in subjects if subject.kind in invariant.kinds]
        reasons = {subject.name: skip_reason(subject, invariant) for subject in asked}
        skipped = [name for name, why in reasons.items() if why not in (None, "law not declared")]
        if skipped:
            some = "all" if len(skipped) == len(asked) else ", ".join(sorted(skipped))
            lines.append(f"{invariant.name}: {some}")
    return "\n".join(lines) + "\n"


def test_nothing_is_skipped_but_what_the_table_says() -> None:
    assert skips() == TABLE.read_text(encoding="utf-8")


if __name__ == "__main__":
    TABLE.write_text(skips(), encoding="utf-8")
