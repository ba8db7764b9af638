"""``attnbench calibrate``: what this machine shows for the same code against itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, OK, exit_code
from attnbench.cli.options import AsJson, Targets

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.calibration import Key
    from attnbench.benchmark.records.record import Record


def command(
    targets: Targets = None,
    set_name: Annotated[str, typer.Option("--set", help="Named set of cases.")] = "default",
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="A real workload instead of a set; may be repeated."),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="A torch device; may be repeated.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype instead of those of the set; may be repeated."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")] = 1,
    cache: Annotated[str, typer.Option("--cache", help="warm or cold.")] = "warm",
    runs: Annotated[int, typer.Option("--runs", min=2, help="Runs of the same code.")] = 4,
    processes: Annotated[
        int, typer.Option("--processes", min=2, help="Processes of each subject and case in a run.")
    ] = 5,
    results: Annotated[
        Path, typer.Option("--results", help="Folder of runs; calibrations go below it.")
    ] = Path("results/attnbench"),
    as_json: AsJson = False,
) -> int:
    """Measure this machine's noise, case by case, for attnbench compare to use.

    The same code is measured in several runs. Calibrating again, at another time, adds to what is
    known. Take the cases and the options that the runs to be compared will have.
    """
    from attnbench.benchmark.comparing.calibration import FOLDER, key_of, noise_of, read_calibration
    from attnbench.benchmark.measuring.contract import Contract
    from attnbench.benchmark.measuring.setting import here
    from attnbench.cli import benching
    from attnbench.cli.tables import print_json, print_table

    chosen: dict[str, Any] = {
        "set_name": None if workload else set_name,
        "workloads": workload or (),
        "dtypes": dtype,
    }
    taken: list[Record] = []
    interrupted = False
    for _ in range(runs):
        # what a run is off by as a whole is part of the noise; the runs of another day add to it
        running = benching.plan(
            benching.start(**chosen, results=results / FOLDER),
            **chosen,
            targets=targets,
            devices=device,
            contract=Contract(cache=cache, threads=threads),
            processes=processes,
        )
        found: list[Record] = []
        try:
            running.measure(found)
        except KeyboardInterrupt:
            interrupted = True
            break
        finally:
            taken += found
    machine = dict(here().machine)
    known = [record for record in read_calibration(results) if dict(record.machine) == machine]
    wanted = {key_of(record): record for record in taken}
    noises = {key: noise for key, noise in noise_of(known).items() if key in wanted}
    rows = [_row(wanted[key], noise, known, key, processes) for key, noise in noises.items()]
    if as_json:
        print_json({"machine": machine, "rows": rows})
    else:
        right = ("processes_%", "runs_%", "in_turn_%", "in_two_runs_%")
        print_table(rows, right=right, empty="No case was measured twice in a run.")
        typer.echo(_LEGEND)
        counts = Counter((r.status, r.reason.partition("\n")[0]) for r in taken)
        for (status, reason), count in counts.items():
            if status != "ok":
                typer.echo(f"{count} {status}: {reason}")
    if interrupted:
        return INTERRUPTED
    code = exit_code(benching.statuses_of(taken))
    return code or (OK if rows else INCONCLUSIVE)


_LEGEND = """\
time_ms        median over all processes of all calibrations of this machine
processes_%    spread (standard deviation) of process medians within a run
runs_%         spread of runs beyond that
in_turn_%      smallest slowdown that 5 runs a side, measured in turn, will show in 95 of 100
in_two_runs_%  the same for one run a side, of as many processes as here
What is below the --margin of 'attnbench compare', 5 % by default, may be called same there."""


def _row(
    example: Record, noise: Any, records: list[Record], key: Key, processes: int
) -> dict[str, Any]:
    import statistics

    from attnbench.benchmark.comparing.calibration import key_of
    from attnbench.benchmark.comparing.verdict import MIN_PROCESSES, visible_effect

    times = [t for r in records if key_of(r) == key and r.status == "ok" for t in r.process_times_s]
    count = max(processes, MIN_PROCESSES)
    seen = visible_effect(noise, MIN_PROCESSES, MIN_PROCESSES, alternated=True)
    apart = visible_effect(noise, count, count, alternated=False)
    return {
        "subject": example.subject,
        "case": example.workload,
        "mask": example.mask,
        "dtype": example.dtype,
        "device": example.device,
        "direction": example.direction,
        "time_ms": statistics.median(times) * 1e3,
        "processes_%": f"{100 * noise.process_sd:.1f}",
        "runs_%": f"{100 * noise.run_sd:.1f}",
        "in_turn_%": f"{100 * seen:.1f}",
        "in_two_runs_%": f"{100 * apart:.1f}",
    }
