"""What other distributions bring: commands and public names, found by entry points.

A distribution names its commands in the group ``attnbench.commands``, each a function as for typer
(:mod:`attnbench.cli` says what it returns), and the names that ``attnbench.NAME`` is to reach in
the group ``attnbench.names``::

    [project.entry-points."attnbench.commands"]
    judge = "attnbench_judge.command:command"

    [project.entry-points."attnbench.names"]
    judge = "attnbench_judge.court:judge"

Nothing of it is imported before it is used.
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

from attnbench.errors import UnknownNameError
from attnbench.hookspecs import PROJECT

COMMAND_GROUP = f"{PROJECT}.commands"
NAME_GROUP = f"{PROJECT}.names"

_PLUGINS = f"{PROJECT}_plugins"
PACKAGES = (PROJECT, _PLUGINS)
"""The packages of attnbench's own distribution."""
PROPERTIES = (f"{PROJECT}.invariants", f"{_PLUGINS}.properties")
MACHINERY = (PROJECT, *(f"{_PLUGINS}.{part}" for part in ("adapters", "explaining", "properties")))
"""What stands between a check and the code that it checks; built-in mechanisms are checked."""

BROUGHT_BY = {
    "attnbench-answers": ("assert_attention_close", "assert_close", "diff", "drift"),
    "attnbench-classroom": ("heatmap", "learn", "notebook"),
    "attnbench-judge": ("Judgement", "judge"),
    "attnbench-peers": (
        "adapters.array",
        "adapters.flex",
        "adapters.interface",
        "adapters.keras",
        "adapters.transformers",
    ),
}
"""Commands and names by the distribution that brings them, for who has not installed it."""


def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of a group by name, the built-in ones first; metadata alone is read.

    A name that is built in keeps its meaning.
    """
    points = sorted(metadata.entry_points(group=group), key=lambda p: (not is_built_in(p), p))
    return {**{p.name: p for p in points}, **{p.name: p for p in points if is_built_in(p)}}


def is_built_in(point: metadata.EntryPoint) -> bool:
    """Whether an entry point is of attnbench's own distribution."""
    return point.dist is not None and point.dist.name == PROJECT


def rival(group: str, name: str) -> metadata.EntryPoint | None:
    """Another distribution's entry point of a name that is built in, if there is one."""
    points = metadata.entry_points(group=group, name=name)
    return next((point for point in points if not is_built_in(point)), None)


@functools.cache
def named_by_plugin(name: str) -> Any:
    """What a distribution brings under a public name.

    Raises:
        UnknownNameError: none does; the message says which one to install.
    """
    if (point := entry_points(NAME_GROUP).get(name)) is None:
        raise UnknownNameError(f"no distribution brings {name}. {advice(name)}".strip())
    return point.load()


def origin(point: metadata.EntryPoint) -> str:
    """The distribution of an entry point and its version, in words."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def advice(name: str) -> str:
    """Which distribution to install for a command or a name; empty if none is known."""
    for distribution, names in BROUGHT_BY.items():
        if name in names:
            told = f"pip install ./plugins/{distribution} in the repository"
            return f"It is part of {distribution}: {told}."
    return ""
