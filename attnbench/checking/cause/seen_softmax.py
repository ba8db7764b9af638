"""Mistakes that are seen in what a softmax of a call is given, with the lines that show them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.known_causes import cause_of_mistake, shown_by
from attnbench.checking.outcomes import Failure
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tracing import line_of, name_of

_CASE = Case((3,), 5, 7, 8, 8, 8)
_SHARE = 0.3
_NEAR = 1e-5
_DROPS = ("bernoulli", "native_dropout")
_BY_NUMBER = ("add", "sub", "rsub", "mul", "div", "masked_fill", "where", "clone", "to_copy")
"""Operations each of whose numbers is of one number of its argument."""


class SoftmaxRun(OperationMode):
    """Listens to the softmaxes of a call over its keys.

    Args:
        keys: the number of keys.
        once: whether a softmax of weights gives these back.

    Attributes:
        twice: words on the first softmax that is taken of weights; ``""`` if there is none.
        dropped: words on the first that is taken of what dropout gave.
    """

    def __init__(self, keys: int = 0, *, once: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.keys, self.once = keys, once
        self.twice = self.dropped = ""
        self._weights: list[tuple[str, Tensor]] = []
        self._drawn: dict[int, tuple[str, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func).strip("_")
        if name == "softmax" and self.keys in (0, args[0].shape[args[1]]):
            line, weights = line_of(func), self._weights_in(args[0], args[1])
            drawn = self._drawn_in(args[0])
            if drawn and not self.dropped:
                same = line.endswith(drawn)
                what = "what dropout gives" if same else f"what dropout gives at {drawn}"
                self.dropped = f"{what} goes into {line}"
            if weights:
                told = f"{line} is taken of rows that are weights already, given by {weights}"
                self.twice = self.twice or told
                if self.once:
                    return args[0].clone()
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        if isinstance(first, Tensor) and first.is_floating_point():
            self._note(func, name, tree_leaves((args, kwargs)), first)
        return result

    def _note(self, func: Any, name: str, given: list[Any], result: Tensor) -> None:
        if name in ("softmax", "div"):
            self._weights.append((line_of(func), result.clone()))
        source = line_of(func).partition(" at ")[2] if name in _DROPS else ""
        for one in given if name in _BY_NUMBER else ():
            if isinstance(one, Tensor) and one.numel() == result.numel():
                source = source or self._drawn_in(one)
        if source:
            self._drawn[result.untyped_storage().data_ptr()] = source, result

    def _drawn_in(self, tensor: Tensor) -> str:
        return self._drawn.get(tensor.untyped_storage().data_ptr(), ("",))[0]

    def _weights_in(self, rows: Tensor, axis: int) -> str:
        """The line that gave the weights, if rows are such; none is told of equal ones."""
        if not bool((rows >= 0).all()) or rows.shape[axis] < 2 or _is_flat(rows, axis):
            return ""
        if not bool(((rows.sum(axis) - 1).abs() < _NEAR).all()):
            return ""
        same = (line for line, t in self._weights if t.numel() == rows.numel() and _same(t, rows))
        return next(same, "")


def _is_flat(rows: Tensor, axis: int) -> bool:
    return bool(((rows.amax(axis) - rows.amin(axis)) < _NEAR).all())


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.flatten(), other.flatten())


def seen_mistake(subject: Subject) -> tuple[str, str] | None:
    """The mistake that a call shows, and words on its lines; ``None`` without one."""
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():
        module, inputs = subject.build(subject.legal(_CASE))
        keys = inputs.key.shape[-2]
        with SoftmaxRun(keys) as run:
            subject.output(module, inputs)
        if run.twice:
            return "softmax_twice", run.twice
        given = inputs.replace(dropout_p=_SHARE) if "dropout_p" in subject.accepts else inputs
        with torch.random.fork_rng(devices=[]), SoftmaxRun(keys) as run:
            subject.output(module.train(), given)
        if run.dropped:
            return "dropout_before_softmax", run.dropped
    return None


def seen_at(subject: Subject, invariant: Invariant, failure: Failure) -> tuple[str, str] | None:
    """The mistake that a call shows, if it explains a failure, and words on its lines.

    Dropout before softmax explains what is about dropout. A softmax of weights explains what holds
    if it gives these back.
    """
    found = None if failure.case is None or failure.raised else seen_mistake(subject)
    if found is None:
        return None
    if found[0] == "dropout_before_softmax":
        return found if invariant.name in shown_by(cause_of_mistake(found[0])) else None
    with contextlib.suppress(Exception, SystemExit), SoftmaxRun(once=True) as run:
        invariant.check(subject, Case.from_id(str(failure.case)))
        return found if run.twice else None
    return None
