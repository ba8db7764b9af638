"""How often the likely cause is right: ``python -m tests.meta.mutants.causes``.

Reads what ``tests.meta.mutants.matrix`` measured, and holds the cause that the failures of each
mutant point at against ``causes.json`` beside this file, which names by hand the causes that are
true of each. The order of the causes that ``attnbench`` ships was tuned on the mutants of every
second module here; those of the others are counted apart.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench_zoo.mutants import MUTANTS, TOPICS

from attnbench.checking.cause.likely_cause import clue_of
from attnbench.checking.cause.replays import made_at
from attnbench.checking.cause.witnesses import explanations
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.checking.runner import seeded
from attnbench.registry.catalog import registry
from attnbench.subject.lookup import resolve
from tests.meta.mutants.measure import Result

__all__ = ["CAUSES", "halves", "main", "verdict"]

ROOT = Path(__file__).parents[3]
CAUSES: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text())

_CASES = 3
"""Counterexamples on which a check looks for a mistake that explains them."""

_WORDS = ("right", "missing", "wrong")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.meta.mutants.causes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "kill_matrix.jsonl")
    parser.add_argument("--profile", default="quick")
    options = parser.parse_args()
    failures: dict[str, list[Result]] = defaultdict(list)
    for line in options.work.read_text().splitlines():
        result = Result(**json.loads(line))
        if result.source == "mutants" and result.profile == options.profile:
            failures[result.subject] += [result] if result.status == "failed" else []
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    half = halves()
    for mutant in MUTANTS:
        failed = failures.get(mutant.name)
        if not failed:
            continue
        clue = clue_of(_outcomes(failed, _explained(mutant.spec, failed)))
        word = verdict(mutant.name, clue and clue.cause)
        counts[half[mutant.name]][word] += 1
        if word != "right":
            print(
                f"{word:7}  {half[mutant.name]}  {mutant.name}: {clue}, not {CAUSES[mutant.name]}"
            )
    for name, counter in sorted(counts.items()):
        total = counter.total()
        told = ", ".join(f"{counter[word]} {word} ({counter[word] / total:.1%})" for word in _WORDS)
        print(f"{name}: {total} mutants: {told}")


def verdict(mutant: str, cause: str | None) -> str:
    """``right``, ``wrong`` or ``missing``: a cause that is said of a mutant."""
    if cause is None:
        return "missing"
    return "right" if cause in CAUSES[mutant] else "wrong"


def halves() -> dict[str, str]:
    """For each mutant, whether its module is one that the order was ``tuned`` on or ``kept``."""
    return {
        mutant.name: ("tuned", "kept")[place % 2]
        for place, topic in enumerate(sorted(TOPICS, key=lambda topic: topic.__name__))
        for mutant in topic.MUTANTS
    }


def _explained(spec: Any, failed: Sequence[Result]) -> tuple[str, ...]:
    (subject,) = resolve(spec)
    found = [result for result in failed if result.counterexample][:_CASES]
    by_name = {invariant.name: invariant for invariant in registry().invariants()}
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if mistakes := explanations(subject, [result.counterexample or "" for result in found]):
            return mistakes
        for result in found:
            failure = Failure(case=result.counterexample, raised=result.raised)
            if mistakes := made_at(subject, by_name[result.invariant], failure):
                return mistakes
    return ()


def _outcomes(failed: Sequence[Result], mistakes: tuple[str, ...]) -> list[Outcome]:
    return [
        Outcome(
            r.subject,
            r.invariant,
            "failed",
            r.reason,
            failure=Failure(named=r.named, raised=r.raised, mistakes=mistakes),
        )
        for r in failed
    ]


if __name__ == "__main__":
    main()
