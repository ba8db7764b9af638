"""The command line: one module per command, imported when that command runs.

A command is an entry of :data:`COMMANDS` and a module of this package with a function ``command``,
or an entry point (:mod:`attnbench.distributions`) that names one, written as for ``typer``: its
parameters are the options, its docstring is the help. At module level it imports only the standard
library, typer and the light modules of attnbench, since ``--help`` imports all built-in commands;
torch, pandas and hypothesis are imported inside its functions::

    def command(
        targets: Annotated[list[str] | None, typer.Argument(help="Addresses.")] = None,
        as_json: AsJson = False,  # options that several commands share are in cli/options.py
    ) -> int:
        '''One sentence for the list of commands.'''
        ...
        return exit_code(statuses)  # cli/options.py: the exit code is what the function returns

If the function raises an :class:`~attnbench.errors.AttnbenchError`, the command prints its message
and exits with code 2. On Ctrl-C it exits with code 130; it only has to save its results so far.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnbench.cli.configuration import check_defaults
from attnbench.cli.options import INTERRUPTED, USAGE
from attnbench.cli.plugin_loading import FailedPluginError
from attnbench.distributions import COMMAND_GROUP, advice, entry_points, is_built_in, origin, rival
from attnbench.errors import AttnbenchError, UnknownNameError, UsageError, nearest
from attnbench.report.printing import prepare_streams, printable

COMMANDS = {"list": "listing", "check": "check", "bench": "bench", "run": "run"}
"""The core's commands in the order of ``--help``, and their modules in this package."""

_GONE = tomllib.loads(resources.files(__name__).joinpath("gone.toml").read_text("utf-8"))
"""Commands and options that went, and what to use instead."""


class _Commands(TyperGroup):
    """A group that imports a command when it is needed, and those of others only to run them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*COMMANDS, *_brought(ctx)]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; in place of another distribution's, one that says where it comes from."""
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"attnbench.cli.{COMMANDS[cmd_name]}")
            return _single(cmd_name, module.command)
        if point := _brought(ctx).get(cmd_name):
            if is_built_in(point):
                return _single(cmd_name, point.load())
            return TyperCommand(cmd_name, help=f"From {origin(point)}.")
        known = _GONE["commands"].get(cmd_name) or advice(cmd_name)
        told = known or nearest(cmd_name, self.list_commands(ctx))
        raise UnknownNameError(f"attnbench has no command {cmd_name!r}. {told}")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run, which is imported where another distribution brings it."""
        name, command, rest = super().resolve_command(ctx, args)
        point = _brought(ctx).get(name or "")
        if point and name not in COMMANDS and not is_built_in(point):
            return name, _single(point.name, _guarded(point)), rest
        if other := rival(COMMAND_GROUP, name or ""):
            where = f"{origin(other)} brings a command {name!r}, which is built in"
            print(f"warning: {where}: the name means the built-in one.", file=sys.stderr)
        return name, command, rest

    def invoke(self, ctx: Any) -> None:
        """Run the command and exit with the code that it returns."""
        raise typer.Exit(super().invoke(ctx) or 0)


class _Command(TyperCommand):
    """A command that says what to use in place of an option that went."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for name in (word.partition("=")[0] for word in args):
            if use := _GONE["options"].get(self.name, {}).get(name):
                raise UsageError(f"'attnbench {self.name}' has no option {name}. {use}")
        return super().parse_args(ctx, args)


def _brought(ctx: Any) -> dict[str, EntryPoint]:
    """The commands beside the core's, which are looked for once."""
    if COMMAND_GROUP not in ctx.meta:
        ctx.meta[COMMAND_GROUP] = entry_points(COMMAND_GROUP)
    return dict(ctx.meta[COMMAND_GROUP])


def _guarded(point: EntryPoint) -> Any:
    """The function of a plugin's command, whose exceptions become one line."""

    def failed(verb: str, error: Exception) -> FailedPluginError:
        what = f"the command {point.name!r} of {origin(point)} {verb}"
        return FailedPluginError(f"{what}: {type(error).__name__}: {error}")

    try:
        function = point.load()
    except Exception as error:  # whatever a stranger's module raises
        raise failed("cannot be imported", error) from error

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            if isinstance(error, AttnbenchError) or hasattr(error, "exit_code"):  # or of typer
                raise
            raise failed("failed", error) from error

    return guarded


def _single(name: str, function: Any) -> Any:
    """A command of typer made of one function."""
    single = _typer(add_completion=False)
    single.command(name, cls=_Command, help=_paragraphs(function.__doc__ or ""))(function)
    return typer.main.get_command(single)


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
        print(printable(f"attnbench: {error}"), file=sys.stderr)
        return getattr(error, "exit_code", USAGE)
    except KeyboardInterrupt:  # during startup; typer handles a later one in the same way
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
