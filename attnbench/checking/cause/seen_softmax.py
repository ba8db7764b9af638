"""Mistakes that are seen in what a softmax of a call is given, with the lines that show them."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.known_causes import table
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tracing import line_of, name_of

_CASE = Case((3,), 5, 7, 8, 8, 8)
_SHARE = 0.3
_NEAR = 1e-5
_DROPS = ("bernoulli", "native_dropout")
_BY_NUMBER = ("add", "sub", "rsub", "mul", "div", "masked_fill", "where", "clone", "to_copy")
"""Operations each of whose numbers is of one number of its argument."""


@dataclass
class _Weights:
    """What a softmax gave, or a division: a tensor, its copy and line, and the axis of the sums."""

    tensor: Tensor
    copy: Tensor
    line: str
    axis: int | None

    def summed_over(self, other: Tensor, axis: int) -> int | None:
        """The axis that is one of another tensor in the same memory, if it is not that of the sums.

        ``None`` as well if the weights were changed since, or sum to 1 over that axis too.
        """
        apart = other.untyped_storage().data_ptr() != self.tensor.untyped_storage().data_ptr()
        if apart or not torch.equal(self.tensor, self.copy) or _are_shares(other, axis):
            return None
        size, step = other.shape[axis], other.stride(axis)
        pairs = zip(self.copy.shape, self.tensor.stride(), strict=True)
        found = [i for i, pair in enumerate(pairs) if pair == (size, step)]
        return found[0] if len(found) == 1 and found[0] != self.axis else None


class SoftmaxRun(OperationMode):
    """Listens to the softmaxes of a call.

    Args:
        keys: the number of keys, over which a softmax is to be; 0 for any.
        axes: the axes that softmaxes are to take instead, by their lines; ``None`` to take none.

    Attributes:
        found: the first of each mistake, with words on its lines, and ``axes`` that undo it.
    """

    def __init__(self, keys: int = 0, axes: Mapping[str, int | None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.keys, self.axes = keys, axes or {}
        self.found: dict[str, tuple[str, dict[str, int | None]]] = {}
        self._weights: list[_Weights] = []
        self._drawn: dict[int, tuple[str, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func).strip("_")
        if name == "softmax":
            self._look_at(line_of(func), args[0], args[1] % args[0].dim())
            axis = self.axes.get(line_of(func), args[1])
            if axis is None:
                return args[0].clone()
            args = (args[0], axis, *args[2:])
        elif name in ("mm", "bmm"):
            self._look_at_sums(line_of(func), (args[0], -1), (args[1], -2))
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        if isinstance(first, Tensor) and first.is_floating_point():
            if name in ("softmax", "div"):
                axis = args[1] % first.dim() if name == "softmax" else None
                self._weights.append(_Weights(first, first.clone(), line_of(func), axis))
            self._note_drawn(func, name, tree_leaves((args, kwargs)), first)
        return result

    def _look_at(self, line: str, rows: Tensor, axis: int) -> None:
        """Note where a softmax over the keys is taken of weights, or of what dropout gave."""
        if self.keys not in (0, rows.shape[axis]):
            return
        drawn = self._drawn_in(rows)
        what = "what dropout gives" + f" at {drawn}" * (not line.endswith(drawn))
        if drawn:
            self.found.setdefault("dropout_before_softmax", (f"{what} goes into {line}", {}))
        flat = rows.shape[axis] < 2 or bool(((rows.amax(axis) - rows.amin(axis)) < _NEAR).all())
        if flat or not bool((rows >= 0).all()) or not _are_shares(rows, axis):
            return
        for one in self._weights:
            if torch.equal(one.copy.flatten(), rows.flatten()):
                text = f"{line} is taken of rows that are weights already, given by {one.line}"
                self.found.setdefault("softmax_twice", (text, {line: None}))

    def _look_at_sums(self, line: str, *given: tuple[Tensor, int]) -> None:
        """Note where weights are summed over another axis than their softmax."""
        for one in self._weights:
            for tensor, axis in given if one.axis is not None else ():
                other = one.summed_over(tensor, axis)
                if other is not None and other == one.copy.dim() - 1:
                    text = (
                        f"{one.line} runs over axis {one.axis}, but {line} sums over axis {other}"
                    )
                    is_next = one.axis == other - 1
                    name = "the_queries" if is_next else f"dimension_{one.axis}"
                    self.found.setdefault(f"softmax_over_{name}", (text, {one.line: -1}))

    def _note_drawn(self, func: Any, name: str, given: list[Any], result: Tensor) -> None:
        source = line_of(func).partition(" at ")[2] if name in _DROPS else ""
        for one in given if name in _BY_NUMBER else ():
            if isinstance(one, Tensor) and one.numel() == result.numel():
                source = source or self._drawn_in(one)
        if source:
            self._drawn[result.untyped_storage().data_ptr()] = source, result

    def _drawn_in(self, tensor: Tensor) -> str:
        return self._drawn.get(tensor.untyped_storage().data_ptr(), ("",))[0]


def _are_shares(rows: Tensor, axis: int) -> bool:
    return bool(((rows.sum(axis) - 1).abs() < _NEAR).all())


def with_what_is_seen(outcome: Outcome, subject: Subject, invariant: Invariant) -> Outcome:
    """A failure with the mistake that a call shows, and its lines; without one as it is."""
    failure = outcome.failure
    seen = None if failure is None else seen_at(subject, invariant, failure)
    if failure is None or seen is None:
        return outcome
    rest = re.sub(r"\n +the first operation by which .*", "", outcome.reason)
    reason = f"{rest}\n  {seen[1]}"
    return replace(outcome, reason=reason, failure=replace(failure, mistakes=(seen[0],)))


def seen_at(subject: Subject, invariant: Invariant, failure: Failure) -> tuple[str, str] | None:
    """The mistake that a call shows, if it explains a failure, and words on its lines.

    Dropout before softmax explains what is about dropout. The others explain what holds without
    them.
    """
    if failure.case is None or failure.raised:
        return None
    for name, (words, axes) in seen_mistakes(subject).items():
        if not axes:
            if str(dict(table()).get(invariant.name)).startswith("dropout"):
                return name, words
            continue
        with contextlib.suppress(Exception, SystemExit), SoftmaxRun(axes=axes):
            invariant.check(subject, Case.from_id(failure.case))
            return name, words
    return None


def seen_mistakes(subject: Subject) -> dict[str, tuple[str, dict[str, int | None]]]:
    """The mistakes that calls show, in evaluation and in training; see :class:`SoftmaxRun`."""
    found: dict[str, tuple[str, dict[str, int | None]]] = {}
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():
        module, inputs = subject.build(subject.legal(_CASE))
        module = copy.deepcopy(module)  # which the subject may share
        keys = inputs.key.shape[-2]
        given = inputs.replace(dropout_p=_SHARE) if "dropout_p" in subject.accepts else inputs
        for training, call in ((False, inputs), (True, given)):
            with SoftmaxRun(keys) as run:
                subject.output(module.train(training), call)
            found = {**run.found, **found}
    return found
