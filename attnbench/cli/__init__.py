"""The command line: one module per command, imported when that command runs.

A command is an entry of :data:`COMMANDS` and a module of this package with a function ``command``,
written as for ``typer``: its parameters are the options, its docstring is the help. At module level
it imports only the standard library, typer and the light modules of attnbench, since ``--help``
imports all commands; torch, pandas and hypothesis are imported inside its functions::

    def command(
        targets: Annotated[list[str] | None, typer.Argument(help="Addresses.")] = None,
        as_json: AsJson = False,  # options that several commands share are in cli/options.py
    ) -> int:
        '''One sentence for the list of commands.'''
        ...
        return exit_code(statuses)  # cli/exit_codes.py: the exit code is what the function returns

If the function raises an :class:`~attnbench.errors.AttnbenchError`, the command prints its message
and exits with code 2. On Ctrl-C it exits with code 130; it only has to save its results so far.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attnbench.checking.plain_tables import escaped
from attnbench.cli.configuration import check_defaults
from attnbench.cli.exit_codes import INTERRUPTED, USAGE
from attnbench.cli.printing.tables import prepare_streams
from attnbench.errors import AttnbenchError, UnknownNameError, nearest

COMMANDS = {
    "plugins": "plugins",
    "list": "listing",
    "check": "check",
    "judge": "judge",
    "bench": "bench",
    "run": "run",
    "compare": "compare",
    "report": "report",
    "heatmap": "attnbench_classroom.heatmap",
    "diff": "diff",
    "drift": "drift",
    "probe": "probe",
    "doctor": "doctor",
    "new": "new",
    "learn": "attnbench_classroom.learn",
    "notebook": "attnbench_classroom.notebook",
}
"""The commands in the order of ``--help``, and their modules; a bare name is in this package."""


class _Commands(TyperGroup):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            raise UnknownNameError(
                f"attnbench has no command {cmd_name!r}. {nearest(cmd_name, COMMANDS)}"
            )
        name = COMMANDS[cmd_name]
        module = importlib.import_module(name if "." in name else f"attnbench.cli.{name}")
        single = _typer(add_completion=False)
        single.command(cmd_name, help=_paragraphs(module.command.__doc__))(module.command)
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> None:
        """Run the command and exit with the code that it returns."""
        raise typer.Exit(super().invoke(ctx) or 0)


def _paragraphs(text: str) -> str:
    """A docstring with each paragraph on one line; typer keeps the line breaks of all but one."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _typer(**settings: Any) -> typer.Typer:
    # rich's tracebacks print pages of local variables and hide the error
    return typer.Typer(pretty_exceptions_enable=False, **settings)


def _version(shows_version: bool) -> None:
    if shows_version:
        from importlib.metadata import version

        typer.echo(f"attnbench {version('attnbench')}")
        raise typer.Exit


_app = _typer(cls=_Commands, no_args_is_help=True)


@_app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Property checks and benchmarks for attention scoring functions."""
    if context.invoked_subcommand == "check":
        context.default_map = {"check": check_defaults()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    prepare_streams()
    command = typer.main.get_command(_app)
    words = None if arguments is None else list(arguments)
    try:
        command.main(args=words, prog_name="attnbench")
    except AttnbenchError as error:
        print(escaped(f"attnbench: {error}"), file=sys.stderr)
        return getattr(error, "exit_code", USAGE)
    except KeyboardInterrupt:  # during startup; typer handles a later one in the same way
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
