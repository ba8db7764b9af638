"""Public ways to test attention, rebuilt by their published rule, as oracles of the zoo.

``python -m attnbench_zoo.harnesses`` scores them.
``--every 5`` takes every fifth entry only, ``--blind`` the blind part, and ``--only`` one of the
harnesses. ``--own quick`` scores attnbench by that profile instead of them, which
takes about a minute of one core for a mutant and more for a right one. ``--json`` keeps what each
of them killed and accused.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import attnbench
from attnbench_zoo.entries import KINDS, Entry, blind_entries, entries
from attnbench_zoo.published import HARNESSES, Harness
from attnbench_zoo.scoring import Score, score

__all__ = ["HARNESSES", "Harness", "main", "own", "rules", "table"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_zoo.harnesses", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--every", type=int, default=1, help="of the entries, every such one")
    parser.add_argument("--blind", action="store_true", help="the blind part")
    among = parser.add_mutually_exclusive_group()
    among.add_argument("--only", choices=[each.name for each in HARNESSES], help="one harness")
    among.add_argument("--own", choices=("quick", "default"), help="attnbench, of this profile")
    parser.add_argument("--json", type=Path, help="a file for what each killed and accused")
    options = parser.parse_args(arguments)
    if options.every < 1:
        parser.error(f"--every is {options.every}, but should be at least 1.")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}.")
    public = [each for each in HARNESSES if options.only in (None, each.name)]
    chosen = [own(options.own)] if options.own else public
    asked = (blind_entries() if options.blind else entries())[:: options.every]
    some = [(each, score(each, asked)) for each in chosen]
    print(f"{table(some)}\n\n{rules(chosen)}")
    if options.json:
        text = json.dumps({each.name: verdicts(found) for each, found in some}, indent=1)
        options.json.write_text(text + "\n", "utf-8")


def own(profile: str) -> Harness:
    """attnbench, by profile; it sees no reference."""

    def oracle(entry: Entry) -> bool:
        statuses = {found.status for found in attnbench.check(entry.spec, profile=profile).outcomes}
        return statuses <= {"passed", "skipped", "inconclusive"}

    return Harness(
        f"attnbench, {profile}",
        "this project",
        "no invariant fails; it is given no reference",
        f"what the profile {profile} draws",
        oracle,
    )


def table(scored: Sequence[tuple[Harness, Score]]) -> str:
    """A table in Markdown: cost, kills by kind, accusations."""
    heads = ["harness", "seconds", *KINDS, "killed", "accused"]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for each, found in scored:
        kinds = ["{} of {}".format(*found.counts(kind)) for kind in KINDS]
        killed, mutants, accused, right = found.counts()
        share = f"{killed} of {mutants} ({killed / max(mutants, 1):.1%})"
        told = [each.name, f"{found.seconds:.0f}"]
        lines.append([*told, *kinds, share, f"{accused} of {right}"])
    return _markdown(lines)


def rules(harnesses: Iterable[Harness]) -> str:
    """A table in Markdown: where each rule is published, and what it is."""
    rows = [[each.name, each.source, each.rule, each.passes] for each in harnesses]
    return _markdown([["harness", "source", "rule", "passes"], ["---"] * 4, *rows])


def _markdown(lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdicts(found: Score) -> dict[str, object]:
    """What is kept of a score."""
    return {"killed": found.killed, "accused": found.accused, "errors": found.errors}


if __name__ == "__main__":
    main()
