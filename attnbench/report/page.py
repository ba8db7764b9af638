"""The page: a single HTML file that needs neither network nor a script library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from attnbench.benchmark.records import (
    BASELINES,
    STATUSES,
    Record,
    natural,
)
from attnbench.checking.outcomes import GOOD
from attnbench.errors import RecordError
from attnbench.report import pictures, texts
from attnbench.report.ranking import Curve, curves, grouped, machines, rows


def load_outcomes(path: Path) -> list[dict[str, Any]]:
    """Load the outcomes of a file written by ``attnbench check --json`` or ``run``.

    Raises:
        RecordError: the file cannot be read, or contains something else.
    """
    try:
        content = json.loads(path.read_bytes())
        outcomes = content["outcomes"]
        return [{"subject": o["subject"], "invariant": o["invariant"], **o} for o in outcomes]
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError):
        raise RecordError(
            f"{path} holds no outcomes; write them with 'attnbench check --json > FILE'."
        ) from None


def _scaling(table: Sequence[Record]) -> dict[str, list[tuple[Curve, Markup]]]:
    """The curves of each family, by its title, with their pictures on common axes."""
    families = {}
    for title, family in curves(table).items():
        times = [time for curve in family for _, *ends in curve.bars for time in ends]
        times += [time for curve in family for _, time in (*curve.points, *curve.baseline)]
        families[title] = [(curve, pictures.panel(curve, times)) for curve in family]
    return families


def _pictures(table: Sequence[Record]) -> dict[str, Markup]:
    """Time against memory, for each case that at least three subjects take, by its title."""
    found = {}
    for group in grouped(table):
        points = [(r.subject, r.time_s, r.peak_bytes) for r in group if r.time_s and r.peak_bytes]
        if len(points) > 2:
            row = group[0]
            mask = f", mask {row.mask}" if row.mask != "none" else ""
            title = f"{row.workload or row.case}{mask}, {row.direction}"
            found[title] = pictures.scatter(f"time against memory, {title}", points)
    return found


def _properties(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The outcomes of each subject, those that are not good, and the number of cases."""
    by_subject: dict[str, dict[str, Any]] = {}
    for outcome in sorted(outcomes, key=lambda o: (o["subject"], str(o["invariant"]))):
        entry = by_subject.setdefault(outcome["subject"], {"all": [], "wrong": [], "cases": 0})
        entry["all"].append(outcome)
        entry["wrong"] += [outcome] if outcome["status"] not in GOOD else []
        entry["cases"] += outcome.get("cases") or 0
    return by_subject


def _formulas(formulas: Mapping[str, tuple[str, str]]) -> list[tuple[list[str], str, str]]:
    """Names, formula and source, with one entry for all subjects that share a formula."""
    names_by_text: dict[tuple[str, str], list[str]] = {}
    for name in sorted(formulas, key=natural):
        formula, source = map(str, formulas[name])  # a plugin's text may be a Markup
        names_by_text.setdefault((formula, source), []).append(name)
    return [(names, *texts) for texts, names in names_by_text.items()]


def render(
    records: Sequence[Record],
    *,
    outcomes: Sequence[Mapping[str, Any]] = (),
    formulas: Mapping[str, tuple[str, str]] | None = None,
    sources: Sequence[str] = (),
) -> str:
    """Render the page as HTML text."""
    table = rows(records)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(texts.FILTERS)
    folder = resources.files(__package__)
    read = {name: folder.joinpath(f"page.{name}").read_text("utf-8") for name in ("css", "js")}
    template = environment.from_string(folder.joinpath("page.html").read_text("utf-8"))
    return template.render(
        **{name: Markup(text) for name, text in read.items()},  # noqa: S704 -- our own
        table=table,
        baseline=BASELINES[0],
        layer_baseline=BASELINES[1],
        layers=any(row.kind == "layer" for row in table),
        counts=dict(Counter(row.status for row in table).most_common()),
        dates=sorted({record.created[:10] for record in records}),
        statuses=STATUSES,
        formulas=_formulas(formulas or {}),
        unknown=sorted({r.subject for r in records} - set(formulas or {}), key=natural),
        scaling=_scaling(table),
        pictures=_pictures(table),
        properties=_properties(outcomes),
        machines=machines(records),
        sources=sources,
    )
