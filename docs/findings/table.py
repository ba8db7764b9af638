"""The table of findings: run its scripts, and write its page.

- ``python docs/findings/table.py run [SCRIPT ...]`` runs those scripts, or all whose library is
  installed, writes down what they printed in ``outcomes.json``, and then does what ``write`` does.
- ``python docs/findings/table.py untriaged OUTCOMES.json`` lists what the suite accuses and
  ``accusations.toml`` does not explain, of the output of ``attnbench check ... --json``.
- ``python docs/findings/table.py write`` makes ``index.md`` from ``findings.toml`` and
  ``outcomes.json``, and needs no library.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
NUMBER = re.compile(r"nan|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TOLERANCE = 1e-5
"""Relative, and absolute below 1: what rounding moves between two machines is less."""
HEAD = """\
# Findings in other libraries

The checks of this project found {defects} defects in current releases of {libraries} public
libraries. Each defect is one row of the first table, however many subjects show it. {wrong} give a
wrong result, and {errors} raise an error where there should be a result.

Each has a script of at most 15 lines that imports only the library. The script prints what a call
gives (`got`) and what it should give (`want`). Where two ways to compute the same thing differ and
nothing says which is right, `want` is the result of the other way. A defect contradicts the
library's documentation, another path through the same library, or arithmetic. The column
“contradicts” says which of these and why, and quotes and links the documentation. Results that
contradict only the conventions of this project are listed as by design or unclear.
A property set as `code` is an [invariant](../reference/invariants.md) of this project.

A test runs each script with the version in the table (`tox -e peers`). It fails if a script prints
the same value twice, or if another version is installed, so the table stays true. The table is
written in `findings.toml`, beside this page; `docs/findings/table.py` makes the page from it and
from the output of the scripts. Public threads were searched on 2026-11-22.
"""

Finding = dict[str, str]
Outcome = dict[str, str]


def read() -> tuple[list[Finding], dict[str, Outcome]]:
    """Findings in the order of the file, and what each script printed when it was last run."""
    with (FOLDER / "findings.toml").open("rb") as file:
        findings: list[Finding] = tomllib.load(file)["finding"]
    outcomes: dict[str, Outcome] = json.loads((FOLDER / "outcomes.json").read_text("utf-8"))
    return findings, outcomes


def accusations() -> list[dict[str, Any]]:
    """What the suite accuses, sorted by hand."""
    with (FOLDER / "accusations.toml").open("rb") as file:
        rows: list[dict[str, Any]] = tomllib.load(file)["accusation"]
    return rows


def untriaged(outcomes: list[dict[str, Any]]) -> list[str]:
    """Accusations among the outcomes of a check that no row explains."""
    known = {(s, i) for row in accusations() for s in row["subjects"] for i in row["invariants"]}
    failed = [(o["subject"], o["invariant"]) for o in outcomes if o["status"] == "failed"]
    return [
        f"{subject}: {invariant}"
        for subject, invariant in failed
        if (subject, invariant) not in known
    ]


def run(script: str, timeout: float = 300) -> Outcome:
    """What a script prints as wrong (``got``) and as right (``want``).

    Raises:
        RuntimeError: the script ended otherwise than by printing both.
    """
    path = FOLDER / "scripts" / f"{script}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path)],
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    printed = dict(re.findall(r"^(got|want) +(.*)$", done.stdout, flags=re.MULTILINE))
    if done.returncode or set(printed) != {"got", "want"}:
        raise RuntimeError(f"{path} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return printed


def differ(got: str, want: str) -> bool:
    """Whether two printed results differ by more than rounding; a NaN equals a NaN."""
    if NUMBER.sub("#", got) != NUMBER.sub("#", want):
        return True
    pairs = zip(NUMBER.findall(got), NUMBER.findall(want), strict=True)
    return not all(_close(float(a), float(b)) for a, b in pairs)


def is_error(got: str) -> bool:
    """Whether a script printed the text of an error in the place of a result."""
    return not (got.startswith("[") or NUMBER.fullmatch(got))


def installed(library: str) -> str | None:
    """The version that is installed, without a local part such as ``+cpu``."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return None


def page(findings: list[Finding], outcomes: dict[str, Outcome]) -> str:
    """The page in Markdown."""
    by_verdict = {
        verdict: [f for f in findings if f["verdict"] == verdict]
        for verdict in ("defect", "by design", "unclear")
    }
    defects = by_verdict["defect"]
    errors = sum(is_error(outcomes[f["script"]]["got"]) for f in defects)
    counted = {"defects": len(defects), "errors": errors, "wrong": len(defects) - errors}
    scripts = [f for f in findings if "script" in f]
    return "\n".join(
        [
            HEAD.format(libraries=len({f["library"] for f in defects}), **counted),
            "## Defects\n",
            *_table(defects, ["library", "subject", "property", "means", "ground", "script"]),
            "\n## By design\n",
            "What a check accuses and the authors say they mean.\n",
            *_table(by_verdict["by design"], ["library", "subject", "property", "means", "source"]),
            "\n## Unclear\n",
            "What nothing decides: no documentation, no other path, no arithmetic.\n",
            *_table(by_verdict["unclear"], ["library", "subject", "property", "means", "why"]),
            "\n## What the suite accuses\n",
            "Each accusation of `attnbench check --profile quick` on the subjects of"
            " `plugins/attnbench-peers`.\n",
            *_lines(
                ["subjects", "invariants", "verdict", "cause"], map(_accusation, accusations())
            ),
            "\n## Scripts\n",
            *(_section(f, outcomes[f["script"]]) for f in scripts),
        ]
    )


HEADINGS = {
    "library": "library",
    "subject": "subject",
    "property": "property",
    "means": "what it means for a user",
    "ground": "contradicts",
    "script": "script",
    "source": "where the authors say so",
    "why": "why",
}


def _table(findings: list[Finding], columns: list[str]) -> list[str]:
    rows = [[_cell(finding, column) for column in columns] for finding in findings]
    return _lines([HEADINGS[column] for column in columns], rows)


def _lines(headings: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _accusation(row: dict[str, Any]) -> list[str]:
    cause = f"[{row['cause']}](#{row['cause']})" if row["verdict"] == "defect" else row["cause"]
    named = [", ".join(f"`{name}`" for name in row[key]) for key in ("subjects", "invariants")]
    return [*named, row["verdict"], cause]


def _cell(finding: Finding, column: str) -> str:
    if column == "library":
        return f"{finding['library']} {finding['version']}"
    if column == "script":
        return f"[script](#{finding['script']})"
    if column == "ground":
        return f"{finding['ground']}: {finding['why']}{_quoted(finding)}".replace("|", "\\|")
    if column == "source":
        return f"{finding['source']}{_quoted(finding)}".replace("|", "\\|")
    if column == "property" and " " not in finding["property"]:
        return f"`{finding['property']}`"
    return finding.get(column, "").replace("|", "\\|")


def _quoted(finding: Finding) -> str:
    return f" “{finding['quote']}” ([source]({finding['address']}))" if "quote" in finding else ""


def _section(finding: Finding, outcome: Outcome) -> str:
    source = (FOLDER / "scripts" / f"{finding['script']}.py").read_text("utf-8")
    thread = (
        f"Thread: {finding['thread']}."
        if "thread" in finding
        else "No thread on this case was found."
    )
    reason = f"{finding['why']}{_quoted(finding)} {thread}"
    return (
        f"### {finding['script']}\n\n"
        f"{_cell(finding, 'library')}: {finding['subject']}. {reason}\n\n"
        f"```text\n{source}```\n\n"
        f"It prints\n\n```text\ngot  {outcome['got']}\nwant {outcome['want']}\n```\n"
    )


def _close(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= TOLERANCE * max(1, abs(b))


def main(command: str, *scripts: str) -> None:
    """Run the scripts of what is installed, or write the page."""
    findings, outcomes = read()
    if command == "untriaged":
        missing = untriaged(json.loads(Path(*scripts).read_text("utf-8"))["outcomes"])
        raise SystemExit("\n".join(missing) or 0)
    if command not in ("run", "write"):
        raise SystemExit(f"{command!r} is none of 'run', 'untriaged' and 'write'")
    if command == "run":
        for finding in findings:
            script = finding.get("script")
            if script and installed(finding["library"]) and script in (scripts or (script,)):
                outcomes[script] = run(script)
                print(script)
        text = json.dumps(outcomes, indent=1, sort_keys=True) + "\n"
        (FOLDER / "outcomes.json").write_text(text, "utf-8")
    (FOLDER / "index.md").write_text(page(findings, outcomes), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["write"])
