"""``attnbench plugins``: the installed plugins by metadata only; with ``--load``, imported."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import exit_code
from attnbench.cli.options import AsJson
from attnbench.cli.plugin_loading import load_plugins
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.registry.discovery import absent_module, discover

_FEW = 3
"""Most names that the table shows of what a plugin brings."""


def command(
    load: Annotated[
        bool, typer.Option("--load", help="Import each plugin and show what it registers.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List the installed plugins.

    Without options, only metadata is read and no plugin is imported. With --load, each is imported,
    and tracebacks of failing ones are shown.
    """
    rows = load_plugins(warn=False) if load else _metadata_rows()
    failed = [row for row in rows if row["status"] == "failed"]
    if as_json:
        print_json(rows)
        return exit_code((), rows)
    for row in rows if load else ():
        names = row["brings"]
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        row["brings"] = ", ".join(names[:_FEW]) + more
    print_table(
        rows,
        hide=("message", "traceback"),
        empty="No plugin is installed, not even the built-in ones: reinstall attnbench.",
    )
    for row in failed:
        origin = f"{row['plugin']} ({row['distribution']} {row['version']})"
        typer.echo(f"{origin} failed to load: {row['message']}")
        typer.echo("  " + row["traceback"].rstrip().replace("\n", "\n  ") + "\n")
    return exit_code((), rows)


def _metadata_rows() -> list[dict[str, Any]]:
    rows = []
    for plugin in discover():
        module = absent_module(plugin) if plugin.status == "found" else None
        missing = {"status": f"missing: no module {module}"} if module else {}
        rows.append(plugin.as_row() | missing)
    return rows
