"""Options that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "Cluster", "Device", "Jobs", "Memory", "Profile", "Seed", "Strict", "Targets"]

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
        help="Run there instead: tcp://HOST:PORT or tls://HOST:PORT of a Dask scheduler, local:N, "
        "slurm, or a file FILE.toml.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option("--device", help="A torch device, such as cpu or cuda.")]
Jobs = Annotated[
    int, typer.Option("-j", "--jobs", min=0, help="Subjects at once; 0 for one a core.")
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
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of what is drawn; the same every time by default."),
]
Strict = Annotated[
    bool, typer.Option("--strict-plugins", help="End at once if any plugin fails to load.")
]
