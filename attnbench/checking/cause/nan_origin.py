"""The line of a subject in which NaN, or infinity, arises."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs
from attnbench.subject.tracing import line_of


class _FirstNan(OperationMode):
    """Finds the first operation that gives NaN, or infinity, for what holds none.

    Attributes:
        line: ``name at file.py:line: source`` of it; ``""`` if unknown.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.line: str = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.line and _overflows(result) and not _overflows((args, kwargs)):
            self.line = line_of(func)
        return result


def _overflows(values: Any) -> bool:
    """Whether there is NaN or infinity; minus infinity may stand for what is hidden."""
    tensors = (one for one in tree_leaves(values) if isinstance(one, Tensor))
    return any(t.is_floating_point() and not bool((t < math.inf).all()) for t in tensors)


def nan_origin(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """Where NaN arises in the first call of a failing check that gives it for finite inputs."""
    if failure.case is None or failure.raised:
        return ""
    calls: list[tuple[str, nn.Module, Inputs, Tensor | None]] = []
    watched = copy.copy(subject)
    for name in ("output", "scores"):
        object.__setattr__(watched, name, functools.partial(_noted, subject, name, calls))
    with contextlib.suppress(Exception, SystemExit):
        invariant.check(watched, Case.from_id(failure.case))
    for name, module, inputs, answer in calls:
        finite = all(bool(tensor.isfinite().all()) for _, tensor in inputs.tensors())
        if finite and answer is not None and bool(answer.isnan().any()):
            first = _FirstNan()
            with contextlib.suppress(Exception, SystemExit), torch.no_grad(), first:
                getattr(subject, name)(module, inputs)
            return first.line
    return ""


def _noted(
    subject: Subject, name: str, calls: list[Any], module: nn.Module, inputs: Inputs
) -> Tensor | None:
    """What a subject's method gives, which is noted with the call."""
    answer: Tensor | None = getattr(subject, name)(module, inputs)
    calls.append((name, module, inputs, answer))
    return answer
