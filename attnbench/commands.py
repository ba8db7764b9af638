"""Building blocks for commands of plugins: options, plugins, child processes, output, exit codes.

A distribution adds a command to ``attnbench`` by an entry point of the group
``attnbench.commands``, whose value is a function as for typer. It returns the exit code::

    def command(targets: Targets = None, as_json: AsJson = False, strict: Strict = False) -> int:
        '''One sentence for the list of commands.'''
        plugins = load_plugins(strict=strict)
        addresses = parse_targets(targets) or []
        rows = [
            call(Task(str(address), "my_package.work:row_of", {"target": address}))
            for address in addresses
        ]
        print_json(rows) if as_json else print_table(rows)
        return exit_code((), plugins)

A format renders :class:`Findings`, in the words of the report (:func:`finding_text` and others).
What needs torch runs in a child process, by the address of a function (:func:`call`, :func:`ask`):
a subject that hangs or crashes does not end the command. Importing this module imports no torch. An
:class:`attnbench.AttnbenchError` that the function raises is printed in one line, with exit code 2.
"""

from attnbench.checking.check_report import counts_text, failure_text, finding_text
from attnbench.checking.check_report import escaped as printable
from attnbench.checking.outcomes import lead_of
from attnbench.cli.configuration import check_defaults
from attnbench.cli.options import (
    INTERRUPTED,
    RESULTS,
    AsJson,
    Call,
    Convention,
    Device,
    Dtypes,
    Inputs,
    Invariants,
    Jobs,
    Profile,
    Set,
    Strict,
    Style,
    Targets,
    Threads,
    Workload,
    exit_code,
    parse_targets,
)
from attnbench.cli.plugin_loading import ask, load_plugins, warm_up_children
from attnbench.errors import PluginError, nearest
from attnbench.processes.git import git
from attnbench.processes.pool import Task, Workers, call, end_text, kill_group, log_tail
from attnbench.registry.address import Address, parse_address
from attnbench.report.findings import Findings
from attnbench.report.printing import (
    check_writable,
    print_json,
    print_line,
    print_table,
    progress,
    write_file,
)
from attnbench.specs.conventions import KINDS, parse_convention

__all__ = [
    "INTERRUPTED",
    "KINDS",
    "RESULTS",
    "Address",
    "AsJson",
    "Call",
    "Convention",
    "Device",
    "Dtypes",
    "Findings",
    "Inputs",
    "Invariants",
    "Jobs",
    "PluginError",
    "Profile",
    "Set",
    "Strict",
    "Style",
    "Targets",
    "Task",
    "Threads",
    "Workers",
    "Workload",
    "ask",
    "call",
    "check_defaults",
    "check_writable",
    "counts_text",
    "end_text",
    "exit_code",
    "failure_text",
    "finding_text",
    "git",
    "kill_group",
    "lead_of",
    "load_plugins",
    "log_tail",
    "nearest",
    "parse_address",
    "parse_convention",
    "parse_targets",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "progress",
    "warm_up_children",
    "write_file",
]
