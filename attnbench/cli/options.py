"""Options that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.errors import UsageError
from attnbench.registry.address import styled

__all__ = [
    "AsJson",
    "Cluster",
    "Convention",
    "Device",
    "Jobs",
    "Memory",
    "Profile",
    "Seed",
    "Strict",
    "Style",
    "Targets",
    "Timing",
    "styled_targets",
]

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help="Addresses: additive, additive/factorised, 'multi_head(scoring=additive)', "
        "path/to/file.py:SPEC. All that are installed by default.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Run on a cluster: tcp://HOST:PORT or tls://HOST:PORT of a Dask scheduler, local:N, "
        "slurm, or a file FILE.toml.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option("--device", help="A torch device, such as cpu or cuda.")]
Jobs = Annotated[
    int, typer.Option("-j", "--jobs", min=0, help="Processes at once; 0 for one per core.")
]
Memory = Annotated[
    float,
    typer.Option(
        "--memory", min=0.1, help="GiB that a subject's process may take before it is ended."
    ),
]
Profile = Annotated[
    str, typer.Option("--profile", help="How hard to look: quick, default or thorough.")
]
Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        help="call, as a user calls it, or device: on a CUDA device by a replayed graph, without "
        "the time that Python takes.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of the drawn cases; the same every time by default."),
]
Strict = Annotated[
    bool, typer.Option("--strict-plugins", help="Stop at once if any plugin fails to load.")
]
Style = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="STYLE",
        help="How the target is called, if it is a function, module or class: sdpa, flash, flex, "
        "interface, keras, multihead, paged or varlen.",
    ),
]
Convention = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="KEY=VALUE",
        help="A convention that the target follows, such as empty_rows=nan; may be repeated.",
    ),
]


def styled_targets(
    targets: list[str] | None, style: str | None, conventions: list[str] | None
) -> list[str] | None:
    """The addresses with the style and conventions that were given for all of them.

    Raises:
        UsageError: there is no target that they could be for.
    """
    if style is None and not conventions:
        return targets
    if not targets:
        raise UsageError("--as and --convention describe a target, and none is named: add one.")
    return [styled(target, style, conventions or ()) for target in targets]
