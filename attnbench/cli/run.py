"""``attnbench run``: check the subjects, measure them, and print one table of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.benchmark.contract import Contract
from attnbench.benchmark.records import Record, half_width, natural
from attnbench.benchmark.workloads import Selection
from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.cli import check_run, machine_runs
from attnbench.cli import options as option
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.cli.printing.outcome_lines import next_step
from attnbench.cli.printing.tables import print_json, print_line, print_table
from attnbench.report import record_tables

_KINDS = ("scoring", "mechanism", "layer")
_LEGEND = """\
checks: properties that hold, of those that apply
times: forward call over that of {attention}, or of {layers} for layers, in turn in one process,
  and its 95 % interval (± 50 %: from × / 1.5 to × · 1.5)"""


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    inputs: option.Inputs = None,
    device: option.Devices = None,
    threads: option.Threads = 1,
    timing: option.Timing = "call",
    baseline: option.Baseline = None,
    seconds: option.MeasuringSeconds = 45.0,
    results: option.Results = option.RESULTS,
    cluster: option.Cluster = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check every subject, measure it on a small grid, and print one table of both.

    This is 'attnbench check' followed by 'attnbench bench --set run'; these commands show more.
    Other work on the machine widens the intervals. On a cluster the checks are split over all
    workers, and every machine measures all rows.
    """
    addresses = option.parse_targets(targets, style, convention, call)
    selection = Selection("run" if inputs is None else None, inputs=inputs)
    selection.check()
    contract = Contract(threads=threads, timing=timing)
    records: list[Record] = []
    with machine_runs.machines_of(cluster, device, *parallel.PRELOAD) as machines:
        places = machine_runs.start(machines, results, preload=parallel.PRELOAD)
        plugins = load_plugins(strict=strict)
        try_options(addresses or ())
        how = {"contract": contract, "budget_s": seconds, "baseline": baseline, "devices": device}
        runs = machine_runs.plan(places, selection, targets=addresses, with_options=False, **how)
        check = check_run.Check(addresses, check_run.Selection())
        check.run(check_run.Limits(cluster=machines.cluster if machines else None))
        ended = machine_runs.Ended(interrupted=True)
        if not check.interrupted:
            ended = machine_runs.measured(runs, records)
    report = check.report()
    paths = [run.place.path for run in runs]
    if as_json:
        print_json(_data(report, records, paths))
    else:
        _show(report, records, paths)
        print_line(f"Next: {next_step(report, targets or ())}")
    ended.show_losses()
    statuses = [*check_run.statuses_of(report), *record_tables.statuses_of(records)]
    return ended.exit_code(statuses, plugins)


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
    parts += [record.device] if record.device != "cpu" else []
    return " ".join([*parts, *filter(None, [record.machine_name])])


def _cell(record: Record) -> str:
    if record.status != "ok":
        return "-" if record.status == "unsupported" else record.status
    if record.ratio is None:
        return f"{(record.time_s or 0) * 1e3:.3g} ms"
    interval = record_tables.percent(half_width(record.ratio_low, record.ratio_high))
    return f"{record.ratio:.3g} ± {interval}"


def _checks_file(report: CheckReport, paths: Sequence[Path]) -> str:
    """The file beside the records in which the checks are kept, which it writes."""
    file = paths[0].with_suffix(".checks.json")
    file.write_text(report.to_json() + "\n", encoding="utf-8")
    return str(file)


def _data(
    report: CheckReport, records: Sequence[Record], paths: Sequence[Path]
) -> Mapping[str, Any]:
    return {
        "files": [*map(str, paths)],
        "checks_file": _checks_file(report, paths),
        "rows": table(report, records),
        "outcomes": [outcome.to_data() for outcome in report.outcomes],
        "records": record_tables.as_rows(records),
    }


def _show(report: CheckReport, records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Print the table: attention and layers apart, since they are measured at other cases."""
    rows = table(report, records)
    layers = {record.subject for record in records if record.kind == "layer"}
    for part in (False, True):
        chosen = [row for row in rows if (row["subject"] in layers) == part]
        used = {name for row in chosen for name, cell in row.items() if cell}
        if chosen:
            print_table([{k: v for k, v in row.items() if k in used} for row in chosen])
    names = {
        name: record_tables.common_baseline(records, layers=name == "layers")
        for name in ("attention", "layers")
    }
    print_line(_LEGEND.format(**names))
    for line in [record_tables.busy_line(records), *report.notes]:
        print_line(line)
    for outcome in report.failures:
        print_line(f"{outcome.subject}: {outcome.invariant}: {outcome.status}", outcome.status)
    for line in record_tables.reasons(_unranked(records)):
        print_line(line)
    places = ", ".join(map(str, paths))
    print_line(f"Recorded in {places}, and the checks in {_checks_file(report, paths)}.")


def _unranked(records: Iterable[Record]) -> list[dict[str, Any]]:
    wrong = [record for record in records if record.status not in ("ok", "unsupported")]
    return [{name: getattr(r, name) for name in ("subject", "status", "reason")} for r in wrong]
