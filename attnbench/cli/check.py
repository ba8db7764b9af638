"""``attnbench check``: check subjects against every invariant that applies to them."""

from __future__ import annotations

from attnbench.checking import parallel
from attnbench.cli import options as option
from attnbench.cli.check_run import Check, Limits, Selection, statuses_of
from attnbench.cli.exemptions import without_known
from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.formats import formats_of
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.cli.printing.outcome_lines import Screen, next_step
from attnbench.cli.printing.tables import print_line
from attnbench.processes.pool import MEMORY_GIB
from attnbench.report.formats.findings import findings_of


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    make: option.Make = None,
    example: option.Example = None,
    jobs: option.Jobs = 0,
    profile: option.Profile = "quick",
    seed: option.Seed = None,
    cluster: option.Cluster = None,
    dtype: option.CheckedDtypes = None,
    device: option.Device = "cpu",
    invariant: option.Invariants = None,
    case: option.OneCase = None,
    timeout: option.InvariantTimeout = None,
    memory: option.Memory = MEMORY_GIB,
    fail_fast: option.FailFast = False,
    formats: option.Formats = None,
    exempt: option.Exempt = None,
    update_exempt: option.UpdateExempt = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check subjects against every invariant that applies to them.

    Each subject runs in its own process. If that hangs or dies, it is recorded as the outcome, and
    the other subjects go on. A subject that passes is one line, with how many properties hold and
    how many do not apply; -v shows each, with the cases it saw.
    """
    preload = parallel.preload(len(targets) if targets else None, invariant)
    plugins = load_plugins(strict=strict, preload=preload)
    output = formats_of(formats or (), as_json=as_json)
    addresses = option.parse_targets(targets, style, convention, call, make, example)
    try_options(addresses or ())
    exemptions = without_known(exempt or ()) if update_exempt else exempt or ()
    selection = Selection(profile, device, dtype, invariant, seed, case)
    check = Check(addresses, selection, exemptions)
    screen = Screen(check.expected, check.statements, verbose=verbose) if output.has_text else None
    for line in check.plan["about"] if screen else ():
        print_line(line)
    check.run(Limits(jobs, timeout, memory, cluster, fail_fast), screen)
    if update_exempt:
        check.exempt_failures()
    report = check.report()
    if screen is not None:
        screen.end(report, check.seconds, next_step(report, targets or ()))
    findings = findings_of(report, check.statements, check.works, located=output.located)
    statuses = [*statuses_of(report), *output.write(findings)]
    return INTERRUPTED if check.interrupted else exit_code(statuses, plugins)
