"""The manual's pages of findings, made when it is built: overview, a page a finding, and a feed.

``docs/hooks.py`` asks for them. Their data are read by ``table.py``.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

Finding = dict[str, str]

ATOM = "http://www.w3.org/2005/Atom"
_THREAD = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
_HEADINGS = ("library", "what goes wrong", "kind", "state")


def overview(findings: list[Finding]) -> str:
    """How many there are, and a table that the page's script filters."""
    defects = [finding for finding in findings if finding["verdict"] == "defect"]
    errors = sum(finding["effect"] == "error" for finding in defects)
    libraries = {finding["library"] for finding in defects}
    others = Counter(finding["verdict"] for finding in findings)
    return "\n".join(
        [
            f"With its checks, and by reading, this project found {len(defects)} defects in "
            f"releases of {len(libraries)} public libraries. {len(defects) - errors} give a wrong "
            f"result, and {errors} raise an error where there should be a result. The table also "
            f"lists {others['by design'] + others['unclear']} differences that are no defects: "
            f"{others['by design']} are by design, {others['unclear']} unclear.\n",
            '<div class="filters" hidden></div>\n',
            table(findings),
        ]
    )


def table(findings: Iterable[Finding], folder: str = "") -> str:
    """A table in HTML, each row with the data that it can be filtered by.

    Args:
        findings: its rows.
        folder: where the pages of the findings are, from the page that the table is on.
    """
    heads = "".join(f"<th>{name}</th>" for name in _HEADINGS)
    rows = [
        f'<tr data-library="{f["library"]}" data-kind="{kind(f)}" data-state="{state(f)}">'
        f'<td data-column="library"><a href="{folder}{library_name(f)}/">{f["library"]}</a> '
        f"{f['version']}</td>"
        f'<td data-column="what goes wrong"><a href="{folder}{f["name"]}/">'
        f"{html.escape(f['subject'])}</a><br>{html.escape(f['means'])}</td>"
        f'<td data-column="kind">{kind(f)}</td><td data-column="state">{state(f)}</td></tr>'
        for f in findings
    ]
    return "\n".join(
        [
            f'<table class="findings"><thead><tr>{heads}</tr></thead><tbody>',
            *rows,
            "</tbody></table>",
        ]
    )


def kind(finding: Finding) -> str:
    """``wrong result``, ``error``, ``by design`` or ``unclear``."""
    return finding["effect"] if finding["verdict"] == "defect" else finding["verdict"]


def state(finding: Finding) -> str:
    """``open``, or the release that mended it; ``-`` of what is no defect."""
    if finding["verdict"] != "defect":
        return "-"
    return f"mended in {finding['mended']}" if "mended" in finding else "open"


def library_name(finding: Finding) -> str:
    """The name of the page of its library."""
    return f"library_{finding['library'].replace('-', '_')}"


def finding_page(
    finding: Finding, accused: list[dict[str, Any]], draft: Callable[[Finding], str] | None
) -> str:
    """The page of one finding.

    Args:
        finding: it.
        accused: rows of ``accusations.toml`` of which it is the cause.
        draft: makes the draft of a report; ``None`` where there is nothing to report.
    """
    named = finding["property"]
    rule = named if " " in named else f"[`{named}`](../reference/invariants.md#{named})"
    facts = {
        "Library": f"[{finding['library']} {finding['version']}]({library_name(finding)}.md)",
        "Kind": kind(finding),
        "State": state(finding),
        "Property": rule,
        "Contradicts": finding.get("ground", ""),
        "Found": finding.get("found", ""),
    }
    if finding["verdict"] == "defect":
        thread = finding.get("thread", f"none on this case was found on {finding['found']}")
        facts["Thread"] = _THREAD.sub(r"[\g<0>](https://github.com/\1/issues/\2)", thread)
    lines = [
        f"# {finding['library']}: {finding['subject']}",
        finding["means"],
        "\n".join(f"- {name}: {text}" for name, text in facts.items() if text),
        *(finding[key] for key in ("why", "source", "cause") if key in finding),
    ]
    if "quote" in finding:
        where = finding["address"]
        cited = f"[source]({where})" if where.startswith("https://") else f"`{where}`"
        lines.append(f"> {finding['quote']}\n>\n> {cited}")
    if "code" in finding:
        lines += [
            f"## Script\n\n```python\n{finding['code']}```",
            f"It prints\n\n```text\ngot  {finding['got']}\nwant {finding['want']}\n```",
        ]
    for row in accused:
        subjects, invariants = (
            ", ".join(f"`{name}`" for name in row[key]) for key in ("subjects", "invariants")
        )
        lines.append(f"`attnbench check --profile quick` accuses {subjects} of it: {invariants}.")
    if draft is not None:
        lines.append(
            "## Draft of a report\n\nFor a person to read and send.\n\n"
            f"````markdown\n{draft(finding)}````"
        )
    lines.append("[All findings](index.md)")
    return "\n\n".join(lines) + "\n"


def library_page(library: str, findings: list[Finding]) -> str:
    """The page of one library."""
    versions = sorted({finding["version"] for finding in findings})
    defects = sum(finding["verdict"] == "defect" for finding in findings)
    return (
        f"# {library}\n\n{defects} defects and {len(findings) - defects} other findings in "
        f"{library} {', '.join(versions)}.\n\n{table(findings, '../')}\n\n"
        "[All findings](index.md)\n"
    )


def accusations_table(rows: list[dict[str, Any]]) -> str:
    """What the suite accuses, each with its verdict and cause."""
    lines = ["| subjects | invariants | verdict | cause |", "| --- | --- | --- | --- |"]
    for row in rows:
        subjects, invariants = (
            ", ".join(f"`{name}`" for name in row[key]) for key in ("subjects", "invariants")
        )
        linked = row["verdict"] == "defect"
        cause = f"[{row['cause']}]({row['cause']}.md)" if linked else row["cause"]
        lines.append(f"| {subjects} | {invariants} | {row['verdict']} | {cause} |")
    return "\n".join(lines)


def pages(
    findings: list[Finding],
    accusations: list[dict[str, Any]],
    draft: Callable[[Finding], str],
    site: str,
) -> dict[str, str]:
    """Every generated file below ``findings/``, by its name."""
    found = {"feed.xml": feed(findings, site)}
    for finding in findings:
        accused = [row for row in accusations if row["cause"] == finding["name"]]
        to_report = finding["verdict"] == "defect" and "mended" not in finding
        text = finding_page(finding, accused, draft if to_report else None)
        found[f"{finding['name']}.md"] = text
    for library in {finding["library"]: None for finding in findings}:
        own = [finding for finding in findings if finding["library"] == library]
        found[f"{library_name(own[0])}.md"] = library_page(library, own)
    return found


def feed(findings: list[Finding], site: str) -> str:
    """An Atom feed of the defects, the newest first.

    Args:
        findings: all of them.
        site: address of the manual, with a slash at its end; may be empty.
    """
    defects = [finding for finding in findings if finding["verdict"] == "defect"]
    newest = sorted(defects, key=lambda finding: finding["found"], reverse=True)
    ElementTree.register_namespace("", ATOM)
    root = ElementTree.Element(f"{{{ATOM}}}feed")

    def add(parent: ElementTree.Element, name: str, text: str = "", **given: str) -> None:
        ElementTree.SubElement(parent, f"{{{ATOM}}}{name}", given).text = text or None

    add(root, "title", "attnbench: findings in other libraries")
    add(root, "id", "tag:attnbench,2026:findings")
    add(root, "updated", f"{newest[0]['found']}T00:00:00Z")
    folder = f"{site}findings/" if site else ""  # without an address, as read beside the pages
    add(root, "link", href=f"{folder}feed.xml", rel="self")
    add(root, "link", href=folder or "./", rel="alternate")
    author = ElementTree.SubElement(root, f"{{{ATOM}}}author")
    add(author, "name", "The attnbench developers")
    for finding in newest:
        entry = ElementTree.SubElement(root, f"{{{ATOM}}}entry")
        add(entry, "title", f"{finding['library']} {finding['version']}: {finding['subject']}")
        add(entry, "id", f"tag:attnbench,2026:findings/{finding['name']}")
        add(entry, "updated", f"{finding['found']}T00:00:00Z")
        add(entry, "link", href=f"{folder}{finding['name']}/")
        add(entry, "summary", finding["means"])
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
