"""Processes that tests of the judge ask."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attnbench_judge.process.confined import Confined
from attnbench_judge.process.entry import Limits


@pytest.fixture
def confined() -> Iterator[Callable[..., Confined]]:
    """Makes a process that has loaded a callee of a file."""
    with ExitStack() as stack:

        def make(path: Path, name: str, limits: Limits | None = None, **more: Any) -> Confined:
            cell = Confined([(str(path), name)], limits or Limits(), **more)
            stack.callback(cell.close)
            return cell

        yield make
