"""Building blocks for commands of plugins: options, plugins, child processes, output, exit codes.

A distribution adds a command to ``attnbench`` by an entry point of the group
``attnbench.commands``, whose value is a function as for typer. It returns the exit code::

    def command(targets: Targets = None, as_json: AsJson = False, strict: Strict = False) -> int:
        '''One sentence for its own --help.'''
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

from attnbench.checking.check_report import counts_text as counts_text
from attnbench.checking.check_report import failure_text as failure_text
from attnbench.checking.check_report import finding_text as finding_text
from attnbench.checking.outcomes import lead_of as lead_of
from attnbench.cli.configuration import check_defaults as check_defaults
from attnbench.cli.options import INTERRUPTED as INTERRUPTED
from attnbench.cli.options import RESULTS as RESULTS
from attnbench.cli.options import AsJson as AsJson
from attnbench.cli.options import Call as Call
from attnbench.cli.options import Convention as Convention
from attnbench.cli.options import Device as Device
from attnbench.cli.options import Dtypes as Dtypes
from attnbench.cli.options import Inputs as Inputs
from attnbench.cli.options import Invariants as Invariants
from attnbench.cli.options import Jobs as Jobs
from attnbench.cli.options import Profile as Profile
from attnbench.cli.options import Set as Set
from attnbench.cli.options import Strict as Strict
from attnbench.cli.options import Style as Style
from attnbench.cli.options import Targets as Targets
from attnbench.cli.options import Threads as Threads
from attnbench.cli.options import Workload as Workload
from attnbench.cli.options import exit_code as exit_code
from attnbench.cli.options import parse_targets as parse_targets
from attnbench.cli.plugin_loading import ask as ask
from attnbench.cli.plugin_loading import load_plugins as load_plugins
from attnbench.cli.plugin_loading import warm_up_children as warm_up_children
from attnbench.errors import PluginError as PluginError
from attnbench.errors import nearest as nearest
from attnbench.processes.git import git as git
from attnbench.processes.pool import Task as Task
from attnbench.processes.pool import Workers as Workers
from attnbench.processes.pool import call as call
from attnbench.processes.pool import end_text as end_text
from attnbench.processes.pool import kill_group as kill_group
from attnbench.processes.pool import log_tail as log_tail
from attnbench.registry.address import Address as Address
from attnbench.registry.address import parse_address as parse_address
from attnbench.report.findings import Findings as Findings
from attnbench.report.printing import check_writable as check_writable
from attnbench.report.printing import print_json as print_json
from attnbench.report.printing import print_line as print_line
from attnbench.report.printing import print_table as print_table
from attnbench.report.printing import printable as printable
from attnbench.report.printing import progress as progress
from attnbench.report.printing import write_file as write_file
from attnbench.specs.conventions import KINDS as KINDS
from attnbench.specs.conventions import parse_convention as parse_convention
