"""Names of invariants that others have absorbed: each stands for its heir wherever it is given."""

from __future__ import annotations

import functools


@functools.cache
def heirs() -> dict[str, str]:
    """The heirs by the names that went."""
    import tomllib  # importing attnbench need not wait for it
    from importlib import resources

    return tomllib.loads(resources.files(__package__).joinpath("heirs.toml").read_text("utf-8"))


def heir(name: str) -> str:
    """The invariant that a name stands for today."""
    return heirs().get(name, name)
