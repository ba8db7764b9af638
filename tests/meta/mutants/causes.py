"""How often the likely cause is right: ``python -m tests.meta.mutants.causes``.

Reads what ``tests.meta.mutants.matrix`` measured, works out for each mutant the clue that its
failures give, and writes the table of known bugs that ``attnbench`` ships, ``diagnoses.json``. Then
each mutant is left out in turn, and the cause that the others make of its clue is held against
``causes.json`` beside this file, which names the causes that are true of each mutant.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.checking.evidence.diagnosis import Clue, clue_of, trusted
from attnbench.checking.evidence.witnesses import explanations
from attnbench.checking.outcomes import Outcome
from attnbench.checking.runner import seeded
from attnbench.subject.lookup import resolve
from tests.meta.mutants import MUTANTS
from tests.meta.mutants.measure import Result

__all__ = ["judged", "main"]

ROOT = Path(__file__).parents[3]
CAUSES: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text())
SHIPPED = ROOT / "attnbench" / "checking" / "evidence" / "diagnoses.json"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.meta.mutants.causes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "kill_matrix.jsonl")
    parser.add_argument("--explained", type=Path, default=ROOT / "build" / "explained.json")
    parser.add_argument("--profile", default="quick")
    options = parser.parse_args()
    failures: dict[str, list[Result]] = defaultdict(list)
    for line in options.work.read_text().splitlines():
        result = Result(**json.loads(line))
        if result.source == "mutants" and result.profile == options.profile:
            failures[result.subject] += [result] if result.status == "failed" else []
    known = json.loads(options.explained.read_text()) if options.explained.exists() else {}
    rows = []
    for mutant in MUTANTS:
        failed = failures.get(mutant.name)
        if not failed:
            continue
        if mutant.name not in known:
            known[mutant.name] = _explained(mutant.spec, failed)
            options.explained.parent.mkdir(parents=True, exist_ok=True)
            options.explained.write_text(json.dumps(known))
        clue = clue_of(_outcomes(failed, known[mutant.name]))
        rows.append(
            {
                "name": mutant.name,
                "bugs": list(mutant.bugs),
                "causes": CAUSES[mutant.name],
                "clue": clue and clue.name,
                "said": clue and clue.cause,
                "failed": sorted({result.invariant for result in failed}),
            }
        )
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    SHIPPED.write_text(f"[\n{lines}\n]\n")
    counts = Counter(judged(row, rows) for row in rows)
    for row in rows:
        if judged(row, rows) != "right":
            print(f"{judged(row, rows):6}  {row['name']}: {row['said']} by {row['clue']}")
    told = ", ".join(f"{counts[w]} {w} ({counts[w] / len(rows):.1%})" for w in _WORDS)
    print(f"{len(rows)} of {len(MUTANTS)} mutants, each left out: {told}")


_CASES = 3
"""Counterexamples that a check tries its hypotheses on."""

_WORDS = ("right", "silent", "wrong")


def judged(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """``right``, ``wrong`` or ``silent``: what the other known bugs make of one's clue."""
    if row["clue"] is None:
        return "silent"
    kind, what = row["clue"].split(":")
    clue = Clue(kind, what, row["said"])
    if not trusted(clue, [other for other in rows if other is not row], row["failed"]):
        return "silent"
    return "right" if clue.cause in row["causes"] else "wrong"


def _explained(spec: Any, failed: Sequence[Result]) -> Sequence[str]:
    (subject,) = resolve(spec)
    cases = [result.counterexample for result in failed if result.counterexample]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return explanations(subject, cases[:_CASES])


def _outcomes(failed: Sequence[Result], explained: Sequence[str]) -> list[Outcome]:
    return [
        Outcome(r.subject, r.invariant, "failed", r.reason, explained=tuple(explained))
        for r in failed
    ]


if __name__ == "__main__":
    main()
