"""The page: a single HTML file that needs neither network nor a script library."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from attnbench.benchmark.records import (
    BASELINE,
    LAYER_BASELINE,
    STATUSES,
    Record,
    content_of,
    natural,
)
from attnbench.checking.outcomes import GOOD
from attnbench.errors import RecordError
from attnbench.report import pictures, texts
from attnbench.report.ranking import (
    Curve,
    Row,
    curves,
    machines,
    rows,
    side_by_side,
)


def load_outcomes(path: Path) -> list[dict[str, Any]]:
    """Load the outcomes of a file written by ``attnbench check --json`` or ``run``.

    Raises:
        RecordError: the file cannot be read, or contains something else.
    """
    try:
        content = json.loads(content_of(path))
        outcomes = content["outcomes"]
        return [{"subject": o["subject"], "invariant": o["invariant"], **o} for o in outcomes]
    except (ValueError, KeyError, TypeError):
        raise RecordError(
            f"{path} holds no outcomes; write them with 'attnbench check --json > FILE'."
        ) from None


def _place(row: Row) -> str:
    """What a row measured, and where."""
    mask = f", mask {row.mask}" if row.mask != "none" else ""
    machine = f" on {row.machine_name}" if row.machine_name else ""
    return f"{row.workload or row.case}{mask}, {row.direction}{machine}"


def _description(row: Row) -> str:
    """The full text about a cell."""
    times = row.times_s if row.time_s is None else (row.time_s,)
    time_text = f", {Decimal(str(statistics.median(times))):f} s" if times else ""
    if row.processes > 1:
        time_text += f", the median of {row.processes} processes"
    if row.tokens_per_s is not None:
        time_text += f", {row.tokens_per_s:,.0f} tokens/s"
    if row.cache_bytes_per_token is not None:
        time_text += f", {row.cache_bytes_per_token:,.0f} B of cache a token"
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.subject}, {_place(row)}: {row.status}{time_text}{reason}"


def _scaling(table: Sequence[Row]) -> dict[str, list[tuple[Curve, Markup]]]:
    """The curves of each family, by its title, with their pictures on common axes."""
    families = {}
    for title, family in curves(table).items():
        times = [time for curve in family for _, *ends in curve.bars for time in ends]
        times += [time for curve in family for _, time in (*curve.points, *curve.baseline)]
        families[title] = [(curve, pictures.panel(curve, times)) for curve in family]
    return families


def _pictures(table: Sequence[Row]) -> dict[str, Markup]:
    """Time against memory, for each case that at least three subjects take, by its title."""
    found = {}
    for _, members in groupby(table, key=lambda row: row.group):
        group = list(members)
        points = [(r.subject, r.time_s, r.peak_bytes) for r in group if r.time_s and r.peak_bytes]
        if len(points) > 2:
            title = _place(group[0])
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
    heat_maps: Mapping[str, Sequence[Sequence[float]]] | None = None,
    formulas: Mapping[str, tuple[str, str]] | None = None,
    title: str = "attnbench report",
    sources: Sequence[str] = (),
) -> str:
    """Render the page as HTML text."""
    table = rows(records)
    days = [record.created[:10] for record in records]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(
        seconds=texts.seconds_text,
        bytes=texts.bytes_text,
        log_share=texts.log_share,
        percent=texts.percent,
        sizes=texts.sizes,
        breakable=texts.breakable,
        fact=texts.fact,
        description=_description,
        fact_name=texts.fact_name,
    )
    folder = resources.files("attnbench.report")
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    heat_maps = heat_maps or {}
    weights = [w for grid in heat_maps.values() for line in grid for w in line]
    largest = max((w for w in weights if math.isfinite(w)), default=1.0)
    non_finite = sorted(
        name
        for name, grid in heat_maps.items()
        if not all(math.isfinite(w) for line in grid for w in line)
    )
    return template.render(
        title=title,
        style=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 -- own
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 -- own
        table=table,
        baseline=BASELINE,
        layer_baseline=LAYER_BASELINE,
        layers=any(row.kind == "layer" for row in table),
        counts=dict(Counter(row.status for row in table).most_common()),
        dates=list(dict.fromkeys((min(days), max(days)))) if days else [],
        masks=sorted({row.mask for row in table}),
        cases=sorted({row.workload or row.case for row in table}, key=natural),
        directions=sorted({row.direction for row in table}),
        contracts=sorted({row.contract for row in table}),
        statuses={s: STATUSES[s] for s in sorted({row.status for row in table}) if s in STATUSES},
        formulas=_formulas(formulas or {}),
        unknown=sorted({r.subject for r in records} - set(formulas or {}), key=natural),
        scaling=_scaling(table),
        pictures=_pictures(table),
        properties=_properties(outcomes),
        heat_maps={
            name: pictures.heat_map(f"weights of {name}", weights, largest)
            for name, weights in heat_maps.items()
        },
        heat_top=largest,
        strange=non_finite,
        machines=machines(records),
        beside=side_by_side(table),
        sources=[Path(source).name for source in sources],
    )
