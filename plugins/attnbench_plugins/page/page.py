"""The page: a single HTML file that needs neither network nor a script library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from attnbench.benchmark.records import BASELINES, STATUSES, Record, baseline_of, natural
from attnbench.checking.outcomes import GOOD
from attnbench.errors import RecordError
from attnbench.report import pictures, texts
from attnbench.report.ranking import families, machines, rows, slope


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
    table = rows(records)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(texts.FILTERS, slope=slope)
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
        formulas=formulas,
        unknown=sorted({r.subject.partition("(")[0] for r in records} - {*formulas}, key=natural),
        scaling=_scaling(table),
        outcomes=outcomes,
        good=GOOD,
        machines=machines(records),
        sources=sources,
    )
