"""Prints the help of commands, as Typer writes it for a manual: ``NAME=MODULE:FUNCTION ...``."""

from __future__ import annotations

import importlib
import sys

import typer
import typer.cli

from attnbench.cli import COMMANDS

CORE = {name: f"attnbench.cli.{module}:command" for name, module in COMMANDS.items()}

if __name__ == "__main__":
    given = dict(argument.split("=") for argument in sys.argv[1:])
    for name, place in (CORE | given).items():
        module, _, function = place.partition(":")
        app = typer.Typer(add_completion=False)
        app.command(name)(getattr(importlib.import_module(module), function))
        command = typer.main.get_command(app)
        print(
            typer.cli.get_docs_for_click(
                obj=command,
                ctx=typer.Context(command),
                indent=1,
                name=name,
                call_prefix="attnbench",
            )
        )
