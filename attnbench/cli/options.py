"""Options that several commands share, so that names and help texts agree."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.errors import UsageError
from attnbench.registry.address import styled

__all__ = [
    "AsJson",
    "Baseline",
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
        help="Addresses of subjects, such as additive, additive/factorised, "
        "'multi_head(scoring=additive)' or path/to/file.py:SPEC. By default all installed ones.",
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
    int, typer.Option("-j", "--jobs", min=0, help="Number of processes; 0 for one per core.")
]
Memory = Annotated[
    float,
    typer.Option("--memory", min=0.1, help="Most GiB of memory for the process of a subject."),
]
Profile = Annotated[
    str, typer.Option("--profile", help="Number of cases to check: quick, default or thorough.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        help="Subject with which those of its kind are paired, instead of scaled_dot or, for "
        "layers, causal_attention.",
        show_default=False,
    ),
]

Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        help="call: time a call as a user makes it. device: on a CUDA device, time a replayed "
        "graph, without the overhead of Python.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of the drawn cases; by default the same every time."),
]
Strict = Annotated[
    bool, typer.Option("--strict-plugins", help="Stop at once if any plugin fails to load.")
]
Style = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="STYLE",
        help="Style of call of a target that is a function, module or class: sdpa, flash, flex, "
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
    """Add the style and conventions to all addresses.

    Raises:
        UsageError: a style or convention is given without a target.
    """
    if style is None and not conventions:
        return targets
    if not targets:
        raise UsageError("--as and --convention describe a target, but none is named; add one.")
    return [styled(target, style, conventions or ()) for target in targets]
