"""The page: a single HTML file that needs neither network nor a script library."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from attnbench.errors import RecordError
from attnbench.timing import STATUSES, Record, baseline_of, natural, ranked_rows
from attnbench_plugins.page import pictures


def load_outcomes(path: Path) -> list[dict[str, Any]]:
    """Load the outcomes of a file written by ``attnbench check --format json=FILE`` or ``run``.

    Raises:
        RecordError: the file cannot be read, or contains something else.
    """
    try:
        outcomes = json.loads(path.read_bytes())["outcomes"]
        return [{"subject": o["subject"], "invariant": o["invariant"], **o} for o in outcomes]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"no outcomes can be read from {path} ({error}); write them with 'attnbench check "
            "--format json=FILE'."
        ) from None


def families(table: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    """The rows with a time over increasing S, all else equal, by a title of that and by subject.

    L = S unless a layer decodes. A subject in a family has two lengths or more.
    """
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for row in table:
        is_square = row.q_len == row.kv_len or row.direction == "decode"
        if is_square and row.inputs is None and row.time_s is not None:
            lead = "×".join(map(str, row.lead)) or "1"
            fixed = f"{row.dtype}, mask {row.mask}, lead {lead}, E {row.query_size}"
            title = f"{fixed}, on {row.device_name}: {row.contract}"
            found[title][row.subject].append(row)
    longer = {
        title: {
            name: sorted(own, key=attrgetter("kv_len"))
            for name, own in sorted(family.items())
            if slope(own) is not None
        }
        for title, family in found.items()
    }
    return {title: family for title, family in longer.items() if family}


def slope(own: Sequence[Record]) -> float | None:
    """Slope of log time over log length: 2 means four times the time at twice the length.

    ``None`` of a single length.
    """
    if len({row.kv_len for row in own}) < 2:
        return None
    x = [math.log(row.kv_len) for row in own]
    y = [math.log(row.time_s or math.nan) for row in own]
    return statistics.linear_regression(x, y).slope


def machines(records: Iterable[Record]) -> list[dict[str, object]]:
    """Each machine once, with its description, versions, commits and runs."""
    entries: dict[str, dict[str, dict[str, object]]] = {}
    for record in records:
        entry = entries.setdefault(
            f"{sorted(record.machine.items())}{record.device_name}", defaultdict(dict)
        )
        entry["machine"].update({"computed on": record.device_name, **record.machine})
        entry["versions"].update(record.versions)
        entry["commits"][record.commit] = None
        entry["runs"][record.run] = None
        entry["sentinels"].update(record.sentinel)
    return [{**entry} for entry in entries.values()]


def _scaling(table: Sequence[Record]) -> dict[str, list[tuple[list[Record], Markup]]]:
    """The rows of each subject of a family, by its title, with their pictures."""
    return {
        title: [
            (own, pictures.panel(own, family.get(baseline_of(own[0].kind), []), family.values()))
            for own in family.values()
        ]
        for title, family in families(table).items()
    }


def render(
    records: Sequence[Record],
    *,
    outcomes: Sequence[Mapping[str, Any]] = (),
    formulas: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    sources: Sequence[str] = (),
) -> str:
    """Render the page as HTML text.

    Args:
        records: the summaries of runs.
        outcomes: outcomes of checks as plain data.
        formulas: formula and source of subjects without options.
        sources: names of the files of the runs.
    """
    table = ranked_rows(records)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(pictures.FILTERS, slope=slope)
    folder = resources.files(__package__)
    read = {name: folder.joinpath(f"page.{name}").read_text("utf-8") for name in ("css", "js")}
    template = environment.from_string(folder.joinpath("page.html").read_text("utf-8"))
    return template.render(
        **{name: Markup(text) for name, text in read.items()},  # noqa: S704 -- our own
        table=table,
        baseline=baseline_of(""),
        layer_baseline=baseline_of("layer"),
        layers=any(row.kind == "layer" for row in table),
        counts=dict(Counter(row.status for row in table).most_common()),
        dates=sorted({record.created[:10] for record in records}),
        statuses=STATUSES,
        formulas=formulas,
        unknown=sorted({r.subject.partition("(")[0] for r in records} - {*formulas}, key=natural),
        scaling=_scaling(table),
        outcomes=outcomes,
        good=("passed", "skipped"),
        machines=machines(records),
        sources=sources,
    )
