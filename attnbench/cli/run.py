"""``attnbench run``: check the subjects, measure them, and print two tables of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnbench.benchmark.records import BASELINES, Record, half_width, natural
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import Selection
from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.cli import check_run
from attnbench.cli import options as option
from attnbench.cli.measured_runs import PRELOAD, planned
from attnbench.cli.outcome_lines import next_step
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.report import record_tables
from attnbench.report.printing import print_json, print_line, print_table, write_file

_CONTRACT = Contract(blocks=4, cap_s=0.15)
"""Half as much of each row as in a bench: what processes differ by, more blocks do not lessen."""

_KINDS = ("scoring", "mechanism", "layer")
_LEGEND = """\
checks: properties that hold, of those that apply
times: forward call over that of {attention}, or of {layers} for layers, in turn in one process,
  and its 95 % interval (± 50 %: from × / 1.5 to × · 1.5)"""


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    convention: option.Convention = None,
    device: option.Devices = None,
    results: option.Results = option.RESULTS,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check every subject, measure it on a small grid, and print two tables of both.

    This is 'attnbench check' followed by 'attnbench bench --set run', with half as many blocks in
    each process; these commands show more.
    Other work on the machine widens the intervals.
    """
    addresses = option.parse_targets(targets, style, convention)
    plugins = load_plugins(strict=strict, preload=(*PRELOAD, *parallel.PRELOAD))
    try_options(addresses or ())
    what: dict[str, Any] = {"targets": addresses, "selection": Selection("run"), "devices": device}
    how: dict[str, Any] = {"contract": _CONTRACT, "with_options": False}
    with planned(results, **what, **how) as run:
        check = check_run.Check(addresses)
        if not as_json:
            count = f"{sum(check.expected.values())} properties of {len(check.expected)} subjects"
            print_line(f"Checking {count}, then measuring {len(run.session.rows)} rows.")
        check.run()
        records = [] if check.interrupted else run.measure()
    report = check.report()
    checks_file = run.path.with_suffix(".checks.json")
    write_file(checks_file, f"{report.to_json()}\n".encode(), "--results")
    if as_json:
        content = {
            "rows": table(report, records),
            "outcomes": [outcome.to_data() for outcome in report.outcomes],
            "records": [asdict(record) for record in records],
        }
        print_json({"file": str(run.path), "checks_file": str(checks_file), **content})
    else:
        _show(report, records)
        print_line(f"Recorded in {run.path}, and the checks in {checks_file}.")
        print_line(f"Next: {next_step(report, targets or ())}")
    if check.interrupted or run.interrupted:
        return option.INTERRUPTED
    statuses = [*check_run.statuses_of(report), *record_tables.statuses_of(records)]
    return option.exit_code(statuses, plugins)


def table(report: CheckReport, records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each subject: how many of its properties hold, and its cell at each case."""
    kinds = {record.subject: record.kind.replace("kernel", "scoring") for record in records}
    baselines = {record.baseline for record in records}
    columns = dict.fromkeys(sorted(map(_column, records), key=natural), "")
    cells: dict[str, dict[str, str]] = {name: {} for name in (*report.by_subject, *kinds)}
    for record in records:
        cells[record.subject][_column(record)] = _cell(record)
    order = sorted(
        cells,
        key=lambda name: (_KINDS.index(kinds.get(name, "layer")), name not in baselines, name),
    )
    return [
        {"subject": name, "checks": _holding(report, name), **columns, **cells[name]}
        for name in order
    ]


def _holding(report: CheckReport, subject: str) -> str:
    statuses = [outcome.status for outcome in report.by_subject.get(subject, ())]
    count = len(statuses) - statuses.count("skipped")
    return f"{statuses.count('passed')}/{count}" if count else "-"


def _column(record: Record) -> str:
    """The case of a record in words, with what distinguishes it from others of its name."""
    parts = [record.workload or record.case]
    parts += [record.direction] if record.kind == "layer" else []
    return " ".join([*parts, *([record.device] if record.device != "cpu" else [])])


def _cell(record: Record) -> str:
    if record.status != "ok":
        return "-" if record.status == "unsupported" else record.status
    if record.ratio is None:
        return f"{(record.time_s or 0) * 1e3:.3g} ms"
    interval = record_tables.percent(half_width(record.ratio_low, record.ratio_high))
    return f"{record.ratio:.3g} ± {interval}"


def _show(report: CheckReport, records: Sequence[Record]) -> None:
    """Print the table: attention and layers apart, since they are measured at other cases."""
    rows = table(report, records)
    layers = {record.subject for record in records if record.kind == "layer"}
    for part in (False, True):
        chosen = [row for row in rows if (row["subject"] in layers) == part]
        used = {name for row in chosen for name, cell in row.items() if cell}
        if chosen:
            print_table([{k: v for k, v in row.items() if k in used} for row in chosen])
    attention, layer = BASELINES
    print_line(_LEGEND.format(attention=attention, layers=layer))
    for line in [record_tables.busy_line(records), *report.notes]:
        print_line(line)
    for outcome in report.failures:
        print_line(f"{outcome.subject}: {outcome.invariant}: {outcome.status}", outcome.status)
    wrong = [record for record in records if record.status not in ("ok", "unsupported")]
    for line in record_tables.reasons(wrong):
        print_line(line)
