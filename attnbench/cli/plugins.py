"""``attnbench plugins``: what is installed, from metadata alone; with ``--load``, what works."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnbench.cli._exit import exit_code
from attnbench.cli._options import AsJson
from attnbench.cli._tables import print_json, print_table


def command(
    load: Annotated[
        bool, typer.Option("--load", help="Import each plugin and show what it brings.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """List the installed plugins.

    Their metadata is read, and nothing imported; with --load they are, and it shows why one fails.
    """
    from attnbench import registry

    found = registry.load().plugins if load else registry.discover()
    rows: list[dict[str, Any]] = []
    for plugin in found:
        row: dict[str, Any] = {
            "plugin": plugin.name,
            "status": plugin.status,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "module": plugin.value,
        }
        if load:
            row["brings"] = [registry.spec_key(spec) for spec in plugin.specs]
            row["message"], row["traceback"] = plugin.message, plugin.trace
        rows.append(row)
    failed = any(plugin.status == "failed" for plugin in found)
    if as_json:
        print_json(rows)
        return exit_code((), plugin_failed=failed)
    print_table(
        [{**row, "brings": _shortened(row["brings"])} if load else row for row in rows],
        hide=("message", "traceback"),
        empty="No plugin is installed, not even the built-in ones: reinstall attnbench.",
    )
    for plugin in found:
        if plugin.status == "failed":
            typer.echo(f"\n{plugin.name} ({plugin.distribution} {plugin.version}) failed:")
            typer.echo(plugin.trace.rstrip() or plugin.message)
    return exit_code((), plugin_failed=failed)


def _shortened(names: list[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
