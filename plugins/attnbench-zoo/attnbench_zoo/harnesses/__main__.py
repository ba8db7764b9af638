"""The table of harnesses: ``python -m attnbench_zoo.harnesses``.

``--own`` adds attnbench by profile, on every tenth mutant and every fourth twin, since all of them
take hours of one core; ``--only`` runs the harnesses whose name contains a word. ``--json`` keeps
which mutants each of them killed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from attnbench_zoo.entries import KINDS, Entry, entries
from attnbench_zoo.harnesses import HARNESSES, Harness, invariants_of_a_profile
from attnbench_zoo.scoring import Score, score

__all__ = ["main", "table"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_zoo.harnesses", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", help="harnesses whose name contains this")
    parser.add_argument("--own", choices=("quick", "default"), help="attnbench, of this profile")
    parser.add_argument("--json", type=Path, help="a file for the verdicts")
    options = parser.parse_args(arguments)
    chosen = [each for each in HARNESSES if options.only in each.name]
    some = [(each, score(each)) for each in chosen]
    if options.own:
        own = Harness(
            f"attnbench, {options.own}",
            "this project",
            "no invariant fails; it is given no reference",
            f"what its profile {options.own} draws; every tenth mutant and every fourth twin",
            invariants_of_a_profile(options.own),
        )
        some.append((own, score(own, sample(entries()))))
    if not some:
        names = ", ".join(repr(each.name) for each in HARNESSES)
        parser.error(f"no harness has {options.only!r} in its name; there are {names}.")
    print(table(some))
    if options.json:
        text = json.dumps({each.name: verdicts(found) for each, found in some}, indent=1)
        options.json.write_text(text + "\n", "utf-8")


def sample(every: Sequence[Entry]) -> list[Entry]:
    """Every tenth mutant, and every fourth twin."""
    mutants = [entry for entry in every if not entry.right]
    twins = [entry for entry in every if entry.topic == "twins"]
    return [*mutants[::10], *twins[::4]]


def table(scored: Sequence[tuple[Harness, Score]]) -> str:
    """A table in Markdown: cost, kills by kind, accusations."""
    heads = ["harness", "rule", "passes", "seconds", *KINDS, "killed", "accused"]
    lines = [heads, ["---", "---", "---", *["--:"] * (len(heads) - 3)]]
    for each, found in scored:
        kinds = ["{} of {}".format(*found.counts(kind)) for kind in KINDS]
        killed, mutants, accused, right = found.counts()
        share = f"{killed} of {mutants} ({killed / max(mutants, 1):.1%})"
        told = [each.name, each.rule, each.passes, f"{found.seconds:.0f}"]
        lines.append([*told, *kinds, share, f"{accused} of {right}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdicts(found: Score) -> dict[str, object]:
    """What is kept of a score."""
    return {"killed": found.killed, "accused": found.accused, "errors": found.errors}


if __name__ == "__main__":
    main()
