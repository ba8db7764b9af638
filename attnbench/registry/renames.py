"""Renamed modules: an import error of an old name tells the new one."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

__all__ = ["renamed", "told"]


@functools.cache
def _table() -> dict[str, str]:
    text = resources.files("attnbench.registry").joinpath("renames.toml").read_text("utf-8")
    return tomllib.loads(text)


def renamed(module: str | None) -> str | None:
    """The new name of a module; ``None`` if it has none."""
    return _table().get(module or "")


def told(error: BaseException) -> str:
    """The end of the message of a failed import of an old name; ``""`` for any other error."""
    if not isinstance(error, ImportError):
        return ""
    member = re.match(r"cannot import name '(\w+)'", str(error))  # from package import module
    for old in (f"{error.name}.{member[1]}" if member else None, error.name):
        if new := renamed(old):
            return f"; {old} was renamed to {new}"
    return ""
