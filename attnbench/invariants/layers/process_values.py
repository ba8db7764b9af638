"""What the process keeps that another module changes: names of a file or class."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.invariants.toolkit.kept_values import unlike
from attnbench.processes.tracebacks import is_own_code

_KEPT = (bool, int, float, str, dict, list, tuple, set, type(None), Tensor)


def process_values(
    module: nn.Module, run: Callable[[], Tensor], others: Callable[[], object]
) -> str:
    """A sentence on what other modules change of the process; empty if it is not found.

    Args:
        module: one whose output they change.
        run: calls it.
        others: makes and calls the others.
    """
    expected = run()
    before = {place: copy.deepcopy(held) for place, held in _values(module)}
    others()
    found = []
    for (owner, name), held in _values(module):
        old = before.get((owner, name), held)
        if unlike(held, old):
            setattr(owner, name, old)
            if torch.equal(run(), expected):
                of = owner.__name__ if isinstance(owner, type) else Path(owner.__file__).name
                found.append(f"{name} of {of}")
            setattr(owner, name, held)
    if len(found) != 1:
        return ""
    return f"\n  another module changes {found[0]}: with what it was before, the output is right"


def _values(module: nn.Module) -> Iterator[tuple[tuple[Any, str], Any]]:
    """Yield what the files and classes of a module's own code hold by name."""
    classes = {kind for part in module.modules() for kind in type(part).__mro__}
    own = [kind for kind in classes if _is_own(kind)]
    for owner in dict.fromkeys([*(sys.modules[kind.__module__] for kind in own), *own]):
        for name, held in list(vars(owner).items()):
            if not name.startswith("__") and isinstance(held, _KEPT):
                yield (owner, name), held


def _is_own(kind: type) -> bool:
    try:
        return is_own_code(inspect.getfile(kind))
    except (TypeError, OSError):  # of Python itself
        return False
