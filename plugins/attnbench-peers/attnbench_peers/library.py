"""The libraries whose attention is here, and the versions that it was tried with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Library:
    """A distribution with attention in it.

    Args:
        name: of the distribution.
        tested: the version that its subjects were tried with.
        extra: of this distribution, that installs it; ``None`` for torch, which is there always.
    """

    name: str
    tested: str
    extra: str | None

    @property
    def installed(self) -> str | None:
        """The version that is installed, without a local part such as ``+cpu``."""
        try:
            return version(self.name).partition("+")[0]
        except PackageNotFoundError:
            return None

    @property
    def state(self) -> str:
        """One line: whether it is installed, and as which version."""
        if self.installed is None:
            return f"not installed: pip install 'attnbench-peers[{self.extra}]'"
        if self.installed != self.tested:
            return f"{self.installed}, but tested with {self.tested}"
        return self.installed


def _libraries() -> Iterator[Library]:
    """torch, and what the extras of this distribution but ``all`` install."""
    yield Library("torch", "2.13.0", None)
    for requirement in map(Requirement, requires("attnbench-peers") or ()):
        extra = re.search(r"extra == ['\"](.+)['\"]", str(requirement.marker))
        if extra and extra[1] != "all":
            tested = str(requirement.specifier).removeprefix("==")
            yield Library(requirement.name, tested, extra[1])


LIBRARIES = {library.name: library for library in _libraries()}
