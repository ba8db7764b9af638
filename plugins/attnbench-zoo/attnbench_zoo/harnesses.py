"""Public ways to test attention, rebuilt by their published rule, as oracles of the zoo.

``python -m attnbench_zoo.harnesses`` scores them.
``--blind`` takes the blind part, and ``--only`` one of the harnesses. ``--own quick`` scores
attnbench by that profile instead of them, which takes about a minute of one core for a mutant and
more for a right one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import attnbench
from attnbench_zoo.entries import KINDS, Entry, blind_entries, entries
from attnbench_zoo.published import HARNESSES
from attnbench_zoo.scoring import Oracle, Score, score

__all__ = ["HARNESSES", "main", "own", "table"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_zoo.harnesses", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--blind", action="store_true", help="the blind part")
    among = parser.add_mutually_exclusive_group()
    among.add_argument("--only", choices=HARNESSES, help="one harness")
    among.add_argument("--own", choices=("quick", "default"), help="attnbench, of this profile")
    options = parser.parse_args(arguments)
    chosen = {options.only: HARNESSES[options.only]} if options.only else HARNESSES
    if options.own:
        chosen = {f"attnbench, {options.own}": own(options.own)}
    asked = blind_entries() if options.blind else entries()
    print(table({name: score(oracle, asked) for name, oracle in chosen.items()}))


def own(profile: str) -> Oracle:
    """attnbench, by profile: no invariant fails; it sees no reference."""

    def oracle(entry: Entry) -> bool:
        statuses = {found.status for found in attnbench.check(entry.spec, profile=profile).outcomes}
        return statuses <= {"passed", "skipped", "inconclusive"}

    return oracle


def table(scored: Mapping[str, Score]) -> str:
    """A table in Markdown: cost, kills by kind, accusations."""
    heads = ["harness", "seconds", *KINDS, "killed", "accused"]
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)]]
    for name, found in scored.items():
        kinds = ["{} of {}".format(*found.counts(kind)) for kind in KINDS]
        killed, mutants, accused, right = found.counts()
        share = f"{killed} of {mutants} ({killed / max(mutants, 1):.1%})"
        lines.append([name, f"{found.seconds:.0f}", *kinds, share, f"{accused} of {right}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
