"""The line of a subject in which NaN arises."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.cause.replays import answers_at
from attnbench.checking.outcomes import Failure
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tracing import line_of


class _FirstNan(OperationMode):
    """Finds the first operation that gives NaN for what holds none.

    Attributes:
        line: ``name at file.py:line: source`` of it; ``""`` if unknown.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.line: str = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.line and _has_nan(result) and not _has_nan((args, kwargs)):
            self.line = line_of(func)
        return result


def _has_nan(values: Any) -> bool:
    tensors = (one for one in tree_leaves(values) if isinstance(one, Tensor))
    return any(t.is_floating_point() and bool(t.isnan().any()) for t in tensors)


def nan_origin(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """Where NaN arises in the first call of a failing check that gives it for finite inputs."""
    if failure.case is None or failure.raised:
        return ""
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():
        for module, inputs, output in answers_at(subject, invariant, Case.from_id(failure.case)):
            finite = all(bool(tensor.isfinite().all()) for _, tensor in inputs.tensors())
            if finite and bool(output.isnan().any()):
                first = _FirstNan()
                with first:
                    subject.output(module, inputs)
                return first.line
    return ""
