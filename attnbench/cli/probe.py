"""``attnbench probe``: which layout, masks and other conventions does a function follow?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attnbench.cli import options as option
from attnbench.cli.exit_codes import exit_code
from attnbench.cli.plugin_loading import ask, load_plugins
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.registry.address import parse_address
from attnbench.specs import DTYPES

_NONE = {"inferred": "that of the inputs", "not taken": "", "ambiguous": ""}
"""What an answer without a value means: only an internal dtype is inferred to be none."""


def command(
    target: Annotated[str, typer.Argument(help="A function, module or spec, as file.py:NAME.")],
    style: option.Style = None,
    call: option.Call = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Infer by small calls which conventions a function of query, key and value follows.

    Each answer is inferred, with the call that shows it; not taken; or ambiguous, never a guess.
    """
    plugins = load_plugins(strict=strict)
    address = parse_address(target).called(style, {})
    if call is not None and address.style is not None:
        address, call = option.with_call(address, call), None
    result = ask("probed", target=address, call=call)
    if as_json:
        print_json(result)
    else:
        rows = [{**row, "value": _value(row)} for row in result["answers"]]
        print_table(rows, empty="Nothing was asked.")
        if result["options"]:
            typer.echo(f"try: attnbench check {target} {result['options']}")
        elif address.style is None:
            typer.echo(result["proposal"])
    return exit_code((), plugins)


def _value(row: Mapping[str, Any]) -> Any:
    value = row["value"]
    if value is None:
        return _NONE[row["status"]]
    if isinstance(value, tuple):
        return "all four" if len(value) == len(DTYPES) else ", ".join(value)
    return value
