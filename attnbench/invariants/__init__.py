"""The properties of a right attention; each is a plain function in one of these modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import walk_packages

from attnbench.hookspecs import hookimpl
from attnbench.specs import Invariant


def invariants_of(package: str) -> Iterator[Invariant]:
    """The invariants that the modules of a package hold, in the order of their names."""
    for found in walk_packages(import_module(package).__path__, f"{package}."):
        module = import_module(found.name)
        yield from (held for held in vars(module).values() if isinstance(held, Invariant))


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants that the modules hold."""
    return invariants_of(__name__)
