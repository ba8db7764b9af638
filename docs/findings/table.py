"""The data of findings; ``pages.py`` makes the manual's pages of it.

- ``python docs/findings/table.py run [SCRIPT ...]`` runs those scripts, or all whose library is
  installed, and writes down what they printed in ``outcomes.json``.
- ``python docs/findings/table.py untriaged OUTCOMES.json`` lists what the suite accuses and
  ``accusations.toml`` does not explain, of the output of ``attnbench check ... --json``.
- ``python docs/findings/table.py reports FOLDER`` writes, for each open defect, a draft of a report
  to its library's authors, for a person to read and send.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
NUMBER = re.compile(r"nan|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TOLERANCE = 1e-5
"""Relative, and absolute below 1: what rounding moves between two machines is less."""

Finding = dict[str, str]
Outcome = dict[str, str]


def read() -> tuple[list[Finding], dict[str, Outcome]]:
    """Findings in the order of the file, and what each script printed when it was last run."""
    with (FOLDER / "findings.toml").open("rb") as file:
        findings: list[Finding] = tomllib.load(file)["finding"]
    outcomes: dict[str, Outcome] = json.loads((FOLDER / "outcomes.json").read_text("utf-8"))
    for finding in findings:
        script = finding.get("script")
        finding["name"] = script or slug(f"{finding['library']} {finding['subject']}")
        if script:
            finding["code"] = (FOLDER / "scripts" / f"{script}.py").read_text("utf-8")
            finding |= outcomes.get(script, {"got": "", "want": ""})  # a script not run yet
            finding["effect"] = "error" if is_error(finding["got"]) else "wrong result"
    return findings, outcomes


def slug(text: str) -> str:
    """A name for a page: letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


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


def is_open(finding: Finding) -> bool:
    """Whether it is a defect that no release has mended."""
    return finding["verdict"] == "defect" and "mended" not in finding


def report(finding: Finding) -> str:
    """A draft of a report to the authors of the library, in Markdown."""
    stated = {"documentation": "The documentation says:", "arithmetic": "Why:"}
    parts = [
        f"# {finding['subject']}: {finding['means']}",
        f"Version: {finding['library']} {finding['version']}, on a CPU.",
        f"## Script\n\n```python\n{finding['code']}```",
        f"## Result\n\n```text\n{finding['got']}\n```",
        f"## Expected\n\n```text\n{finding['want']}\n```",
        f"{stated.get(finding['ground'], 'Another path of the library:')} {finding['why']}",
    ]
    if "quote" in finding:
        parts.append(f"> {finding['quote']}\n\n{finding['address']}")
    if "cause" in finding:
        parts.append(f"## Cause\n\n{finding['cause']}")
    if "patch" in finding:
        parts.append(f"## Patch\n\n```diff\n{finding['patch'].strip()}\n```")
    if "thread" in finding:
        parts.append(f"Related: {finding['thread']}.")
    return "\n\n".join(parts) + "\n"


def write_reports(findings: list[Finding], folder: Path) -> None:
    """A file for each open defect."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in filter(is_open, findings):
        (folder / f"{finding['name']}.md").write_text(report(finding), "utf-8")
    print(f"{sum(map(is_open, findings))} drafts in {folder}")


def _close(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= TOLERANCE * max(1, abs(b))


def main(command: str = "", *given: str) -> None:
    """Run the scripts of what is installed, list what no row explains, or write drafts."""
    findings, outcomes = read()
    if command == "untriaged":
        missing = untriaged(json.loads(Path(*given).read_text("utf-8"))["outcomes"])
        raise SystemExit("\n".join(missing) or 0)
    if command == "reports":
        write_reports(findings, Path(*given or ["build/reports"]))
    elif command == "run":
        for finding in findings:
            script = finding.get("script")
            known = script in (given or (script,)) and "mended" not in finding
            if script and known and installed(finding["library"]):
                outcomes[script] = run(script)
                print(script)
        text = json.dumps(outcomes, indent=1, sort_keys=True) + "\n"
        (FOLDER / "outcomes.json").write_text(text, "utf-8")
    else:
        raise SystemExit(f"{command!r} is none of 'run', 'untriaged' and 'reports'")


if __name__ == "__main__":
    main(*sys.argv[1:])
