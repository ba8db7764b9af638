"""Lines of source text, their variables, and the lines that a result depends on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Unwritable(Exception):  # noqa: N818 -- always caught
    """A value or a function that has no plain source text."""


@dataclass
class Step:
    """One line of the script.

    Args:
        text: source text, with ``‹number›`` for a variable.
        reads: numbers of the variables that it reads.
        writes: numbers of the variables that it creates or changes.
        problem: why the line, and so any script that needs it, cannot be written.
        grad: whether gradients were recorded.
    """

    text: str
    reads: set[int]
    writes: set[int]
    problem: str = ""
    grad: bool = True


class Lines:
    """The lines written so far, and the objects that they name.

    Attributes:
        steps: the lines.
        names: better names of variables than their numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.names: dict[int, str] = {}
        self._numbers: dict[int, int] = {}  # id of an object -> number of its variable
        self._objects: list[object] = []  # kept alive, so that no id is used twice
        self._in_storage: dict[int, set[int]] = {}

    def introduce(self, value: Tensor | nn.Module | torch.Generator) -> None:
        """Write the line that creates an object that appears as an argument for the first time."""
        raise NotImplementedError

    def write(
        self,
        text: str,
        reads: set[int],
        result: object = None,
        *,
        changed: Iterable[object] = (),
        problem: str = "",
    ) -> None:
        """Add a line; its results get variables.

        Args:
            text: an expression.
            reads: numbers of the variables that it reads.
            result: value of the expression; only tensors in it get variables.
            changed: objects that it changed in place.
            problem: why it cannot be written.
        """
        writes = {number for value in changed for number in self._sharing(value)}
        targets, numbers = self._targets(result)
        if not numbers and not writes:
            return
        line = f"{targets} = {text}" if numbers else text
        step = Step(line, reads, writes | numbers, problem, grad=torch.is_grad_enabled())
        self.steps.append(step)

    def _targets(self, result: object) -> tuple[str, set[int]]:
        if isinstance(result, Tensor):
            if id(result) in self._numbers:
                return "", set()
            number = self.number(result)
            return f"‹{number}›", {number}
        if isinstance(result, tuple | list) and any(isinstance(item, Tensor) for item in result):
            parts, created = [], set()
            for item in result:
                target, numbers = self._targets(item) if isinstance(item, Tensor) else ("", set())
                parts.append(target or "_")
                created |= numbers
            return ", ".join(parts) + ("," if len(parts) == 1 else ""), created
        return "", set()

    def number(self, value: object) -> int:
        """The number of an object's variable; creates one if needed."""
        if id(value) not in self._numbers:
            self._objects.append(value)
            self._numbers[id(value)] = len(self._objects)
            if isinstance(value, Tensor):
                self._in_storage.setdefault(_storage(value), set()).add(len(self._objects))
        return self._numbers[id(value)]

    def knows(self, value: object) -> bool:
        """Whether an object has a variable."""
        return id(value) in self._numbers

    def _sharing(self, value: object) -> set[int]:
        """The variables of all tensors that share an object's memory, including its own."""
        if isinstance(value, Tensor):
            return {self.number(value), *self._in_storage.get(_storage(value), ())}
        return {self.number(value)}

    def _index(self, index: Any, reads: set[int]) -> str:
        """The source text of an index: ``..., :1, 0``."""

        def part(item: Any) -> str:
            if not isinstance(item, slice):
                return self.source(item, reads)
            ends = ["" if e is None else self.source(e, reads) for e in (item.start, item.stop)]
            step = "" if item.step is None else f":{self.source(item.step, reads)}"
            return f"{ends[0]}:{ends[1]}{step}"

        return ", ".join(map(part, index)) if isinstance(index, tuple) else part(index)

    def source(self, value: Any, reads: set[int]) -> str:
        """The source text of an argument; adds the variables in it to ``reads``.

        Raises:
            Unwritable: the argument has no source text.
        """
        if isinstance(value, Tensor | nn.Module | torch.Generator):
            if not self.knows(value):
                self.introduce(value)
            reads.add(self.number(value))
            return f"‹{self.number(value)}›"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if value is Ellipsis:
            return "..."
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self.source(part, reads) for part in parts)})"
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.device):
            return repr(str(value))
        if isinstance(value, tuple | list):
            inner = ", ".join(self.source(item, reads) for item in value)
            if isinstance(value, list):
                return f"[{inner}]"
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, dict):
            items = (f"{k!r}: {self.source(v, reads)}" for k, v in value.items())
            return "{" + ", ".join(items) + "}"
        raise Unwritable(f"a {type(value).__name__} as an argument")

    def steps_for(self, variables: set[int]) -> list[Step]:
        """The lines that some variables depend on, in order."""
        steps = []
        for step in reversed(self.steps):
            if step.writes & variables:
                steps.append(step)
                variables = variables | step.reads
        return steps[::-1]

    def name(self, value: object, name: str) -> None:
        """Give a variable a better name, unless another variable has it."""
        if self.knows(value) and name not in self.names.values():
            self.names[self.number(value)] = name


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)
