"""The first screen of ``attnbench run`` as it is printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from attnbench.benchmark.grid import OVERHEAD, Grid, Line, grids, half_width, overhead_share
from attnbench.benchmark.records.record import Record
from attnbench.checking.plain_tables import escaped
from attnbench.cli.printing.tables import console
from attnbench.report import record_tables

_OVERHEAD_SIGN = "°"
_LEGEND = """\
×: time of a forward call over that of {baseline}, in turn in the same process; that of
  {baseline} itself shows the noise; – does not take this case
±: 95 % interval of ×, from {counts} processes: ± 50 % means from × / 1.5 to × · 1.5
gain: how many times faster a kernel is than its scoring function
MiB: peak memory of the call beyond inputs and parameters
checks: invariants that hold, of those that were run; +N: for N more there was no time
{sign} overhead is at least a fifth of the call: {overhead}"""
_LAYER_LEGEND = """\
Layers: × is time over that of {baseline}; prefill computes S tokens in one call, decode the
  last of S with a cache of the others; tok/s: tokens per second, from the times alone, so that
  layers are compared by ×;
  B/tok: bytes of the cache over the S tokens, of which a window keeps only its own"""
_SIGNS = {
    "unsupported": "–",
    "unverified": "wrong",
    "out_of_memory": "no memory",
    "timeout": "timeout",
    "failed": "failed",
    "crashed": "crashed",
}


def show(content: Mapping[str, Any], records: Sequence[Record], subjects: Sequence[str]) -> None:
    """Print the screen."""
    from rich.markup import escape

    screen = console()
    failures = [*map(escaped, content["wrong"])]
    if failures:
        screen.print(f"[bold red]Wrong:[/] {escape(failures[0])}")
        for line in failures[1:8]:
            screen.print(f"       {escape(line)}")
        if len(failures) > 8:
            screen.print(f"       and {len(failures) - 8} more; attnbench check")
    in_grids: set[str] = set()
    for machine in dict.fromkeys(record.machine_name for record in records):
        machine_records = [record for record in records if record.machine_name == machine]
        if machine:
            print(f"On {machine}, {machine_records[0].machine.get('processor', '')}:")
        for grid in grids(machine_records):
            print(_setting(record for line in grid.lines for record in line.cells if record))
            _print_grid(grid, content["checks"])
            in_grids |= {line.subject for line in grid.lines}
    missing = [name for name in subjects if name not in in_grids]
    if missing:
        print(f"Not measured: {', '.join(missing)}.")
    processes = sorted(len(record.ratios) for record in records if record.ratios)
    counts = (
        " to ".join(map(str, dict.fromkeys((processes[0], processes[-1])))) if processes else "no"
    )
    layers = any(record.kind == "layer" for record in records)
    texts = {
        "counts": counts,
        "sign": _OVERHEAD_SIGN,
        "overhead": _overhead(records),
        "baseline": record_tables.common_baseline(records, layers=False),
    }
    print(_LEGEND.format(**texts))
    if layers:
        print(_LAYER_LEGEND.format(baseline=record_tables.common_baseline(records, layers=True)))
    if content["busy"]:
        print(content["busy"])
    print(
        "Left out: " + "; ".join(f"{row['what']} ({row['command']})" for row in content["left_out"])
    )
    print("Next: " + "   ".join(content["next"]))


def _setting(records: Iterable[Record]) -> str:
    """The sizes, dtypes, devices and threads at which the rows of a grid were measured."""
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        threads = f"{record.threads} thread" + ("s" if record.threads > 1 else "")
        facts["where"][f"{record.dtype} on {record.device}, {threads}"] = None
        if record.kind != "layer":
            lead = "x".join(map(str, record.lead)) or "none"
            facts["sizes"][f"batch and heads {lead}, E={record.query_size}"] = None
        else:
            facts["sizes"][f"E={record.query_size}"] = None
    return "; ".join(" or ".join(values) for values in facts.values())


def _overhead(records: Sequence[Record]) -> str:
    times = [record.null_s for record in records if record.null_s]
    if not times:
        return "not measured"
    return f"{min(times) * 1e6:.0f} µs, by a kernel that computes nothing"


def _print_grid(grid: Grid, checks: Mapping[str, Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    table.add_column("checks", justify="right")
    for title, columns in zip(grid.titles, _columns(grid), strict=True):
        for head, column in zip_longest(title.splitlines(), columns, fillvalue=""):
            table.add_column(f"{head}\n{column}", justify="right")
    kind = "scoring"
    for line in grid.lines:
        if line.kind == "mechanism" and kind != "mechanism":
            table.add_section()
            kind = "mechanism"
        name = f"  {line.name}" if line.beneath else line.name
        cells = [
            cell
            for record, columns in zip(line.cells, _columns(grid), strict=True)
            for cell in (_cells(record) if record else dict.fromkeys(columns, "")).values()
        ]
        row = checks.get(line.subject)
        style = "bold red" if _is_wrong(line, row) else ""
        table.add_row(*(Text(cell, style=style) for cell in (name, _checks_cell(row), *cells)))
    console().print(table)


def _short_number(count: float) -> str:
    """A number with three digits, in thousands or millions if needed."""
    for factor, sign in ((1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * factor:
            return f"{count / factor:.3g}{sign}"
    return f"{count:.3g}"


def _is_wrong(line: Line, checks: Mapping[str, Any] | None) -> bool:
    has_failure = any(r is not None and r.status not in ("ok", "unsupported") for r in line.cells)
    return has_failure or bool(checks and checks["wrong"])


def _checks_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "not run"
    suffix = f" +{row['not_run']}" if row["not_run"] else ""
    return f"{row['passed']}/{row['of']}{suffix}"


def _columns(grid: Grid) -> list[tuple[str, ...]]:
    """The columns of each case."""
    examples = zip(*(line.cells for line in grid.lines), strict=True)
    return [tuple(_cells(next(cell for cell in cells if cell))) for cells in examples]


def _cells(record: Record) -> dict[str, str]:
    """The cells of a record by column: its ratio, the half width of the interval, and more."""
    layer = record.kind == "layer"
    memory = "" if record.peak_bytes is None else f"{record.peak_bytes / 2**20:.3g}"
    extra = {"gain": "", "MiB": memory}
    if layer:
        extra = {"tok/s": "", "B/tok" if record.direction == "decode" else "MiB": ""}
    cells = {"×": "", "±": "", **extra}
    first = next(iter(cells))
    if record.status != "ok":
        return cells | {first: _SIGNS.get(record.status, record.status)}
    if layer:
        cache_bytes = record_tables.whole(record.cache_bytes_per_token)
        size = ("" if cache_bytes is None else str(cache_bytes)) if "B/tok" in cells else memory
        cells |= dict(zip(extra, (_short_number(record.tokens_per_s or 0), size), strict=True))
    elif record.gain is not None:
        cells["gain"] = f"{record.gain:.3g}×"
    if record.ratio is None:
        return cells | {first: f"{(record.time_s or 0) * 1e3:.3g} ms"}
    share = overhead_share(record)
    sign = _OVERHEAD_SIGN if share is not None and share >= OVERHEAD else ""
    interval = record_tables.percent(half_width(record.ratio_low, record.ratio_high))
    return cells | {first: f"{record.ratio:.3g}{sign}", "±": interval}
