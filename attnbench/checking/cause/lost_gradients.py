"""The lines of a subject that keep a gradient from what it is computed of."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attnbench.cases.case import Case
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs
from attnbench.subject.tracing import calling_line

_CUTS = {
    Tensor.detach: "detach",
    Tensor.detach_: "detach",
    Tensor.data.__get__: "data",  # type: ignore[attr-defined]  # torch has not typed it
}
"""What gives a tensor without its gradient."""


class _Passing(TorchFunctionMode):
    """Lets gradients pass where code stops them.

    Args:
        lines: those at which they pass; ``None`` for all.

    Attributes:
        found: the lines that stop them, in order, each with what does.
    """

    def __init__(self, lines: Collection[str] | None) -> None:
        super().__init__()
        self.lines, self.found = lines, dict[str, str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = _CUTS.get(func, "" if torch.is_grad_enabled() else "no_grad")
        computes = any(isinstance(one, Tensor) for one in tree_leaves((args, kwargs)))
        line = calling_line() if what and computes else ""
        if line:
            self.found.setdefault(line, what)
        if not line or (self.lines is not None and line not in self.lines):
            return func(*args, **(kwargs or {}))
        if what != "no_grad":
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


def passed_gradients(subject: Subject, case: Case, check: Callable[[Subject, Case], None]) -> str:
    """The lines at which gradients have to pass for a failing check to hold, in words; else ``""``.

    They are as few as suffice of those that stop them.
    """

    def holds(lines: Collection[str] | None) -> tuple[bool, dict[str, str]]:
        watched, found = copy.copy(subject), dict[str, str]()

        def output(module: nn.Module, inputs: Inputs) -> Tensor:
            if not torch.is_grad_enabled():
                return subject.output(module, inputs)
            with _Passing(lines) as mode:
                answer = subject.output(module, inputs)
            found.update(mode.found)
            return answer

        object.__setattr__(watched, "output", output)
        with contextlib.suppress(Exception, SystemExit):
            check(watched, case)
            return True, found
        return False, found

    is_right, needed = holds(None)
    for line in list(needed) if is_right else ():
        others = {other: what for other, what in needed.items() if other != line}
        if holds(others)[0]:
            needed = others
    if not is_right or not needed:
        return ""
    lines = " and ".join(f"{what} at {line}" for line, what in needed.items())
    return f"\n  it is right once gradients pass {lines}"
