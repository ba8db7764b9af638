"""The line of a subject in which the NaN of an output, or scores of minus infinity, arise."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure
from attnbench.oracle.references import allowed_and_bias
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs
from attnbench.subject.tracing import line_of, name_of

_MOST_LINES = 12
"""Lines of a call, from which on no further ones are looked for."""


_POWERS = ("exp", "exp_", "exp2", "exp2_")
"""Operations whose 0, for what is finite, is as much too small as their infinity is too large."""


class _Sources(OperationMode):
    """Finds the operations that give NaN, infinity, or a power of 0, for what holds none.

    Args:
        replaced: the lines whose NaN and infinity become 0, and whose powers what a dtype can hold
            the square of.
        is_open: whether no mask is given, so that minus infinity stands for nothing hidden.

    Attributes:
        lines: each ``name at file.py:line: source``, in order, and what is first among its values.
    """

    def __init__(self, replaced: Collection[str], is_open: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.replaced, self.is_open = replaced, is_open
        self.lines: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_fine = not self._overflowing((args, kwargs))  # asked first: it may write into them
        result = func(*args, **(kwargs or {}))
        is_power = name_of(func) in _POWERS
        if not is_fine or not (wrong := self._overflowing(result, is_power)):
            return result
        if line := line_of(func):
            kinds = [_kind(tensor) for tensor in wrong]
            self.lines[line] = max(self.lines.get(line, ""), *kinds, key=[*_KINDS].index)
            for tensor in wrong if line in self.replaced else ():
                if is_power:
                    numbers = torch.finfo(tensor.dtype)
                    tensor.clamp_(numbers.tiny**0.5, numbers.max**0.5)
                else:
                    tensor.masked_fill_(~tensor.isfinite(), 0.0)
        return result

    def _overflowing(self, values: Any, is_power: bool = False) -> list[Any]:
        """The tensors, and numbers, with NaN or infinity, or 0 as a power."""
        found = []
        for one in tree_leaves(values):
            is_number = isinstance(one, float)
            if not is_number and not (isinstance(one, Tensor) and one.is_floating_point()):
                continue
            tensor = torch.tensor(one) if is_number else one
            fine = tensor.isfinite() if self.is_open else tensor < math.inf
            if not bool(fine.all()) or (is_power and not bool(tensor.all())):
                found.append(one)
        return found


_KINDS = {"": "", "0": "follows from 0", "infinity": "follows from infinity", "NaN": "arises"}


def _kind(tensor: Tensor) -> str:
    if bool(tensor.isnan().any()):
        return "NaN"
    return "infinity" if bool(tensor.isinf().any()) else "0"


def is_no_number(failure: Failure) -> bool:
    """Whether a value is NaN, or what comes of scores of minus infinity."""
    return failure.got != failure.got or failure.got in (0, math.inf, -math.inf)


def nan_origin(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """Where NaN arises in the first call of a failing check that gives it for finite inputs.

    Returns:
        Words that name the first of the lines, mostly one, that take NaN out of the output if 0
        takes the place of their NaN and infinity, and only together. ``""`` if there are none.
    """
    if failure.case is None or failure.raised:
        return ""
    calls: list[tuple[str, nn.Module, Inputs, Tensor | None]] = []
    watched = copy.copy(subject)
    for name in ("output", "scores"):
        object.__setattr__(watched, name, functools.partial(_noted, subject, name, calls))
    with contextlib.suppress(Exception, SystemExit):
        invariant.check(watched, Case.from_id(failure.case))
    for name, module, inputs, answer in calls:
        finite = all(bool(t.isfinite().all()) for n, t in inputs.tensors() if n != "attn_mask")
        mask = getattr(inputs, "attn_mask", None)
        finite = finite and (mask is None or bool((mask < math.inf).all()))
        if not finite or answer is None:
            continue
        is_open = subject.kind != "layer" and bool(allowed_and_bias(inputs)[0].all())
        if bool(answer.isnan().any()):
            where = _needed(functools.partial(getattr(subject, name), module, inputs), is_open)
            return where and f"NaN {where}"
        scores = subject.scores(module, inputs) if is_open and subject.kind == "scoring" else None
        if scores is not None and _is_lost(scores):
            where = _needed(functools.partial(subject.scores, module, inputs), is_open)
            return where and f"a score of minus infinity {where}"
    return ""


def _needed(call: Callable[[], Tensor | None], is_open: bool) -> str:
    """The first of the lines whose NaN and infinity have to become 0, in words."""
    found: dict[str, str] = {}
    while (state := _run(call, found, is_open))[0]:
        if state[1].keys() <= found.keys() or len(found) > _MOST_LINES:
            return ""
        found |= {line: kind for line, kind in state[1].items() if line not in found}
    if state[0] is None:
        return ""
    needed = list(found)
    for line in reversed(found):  # what comes later may follow from what came before
        others = [other for other in needed if other != line]
        if _run(call, others, is_open)[0] is False:
            needed = others
    if not needed:  # called again, it gives no NaN
        return ""
    return f"{_KINDS[found[needed[0]]]} in {needed[0]}"


def _run(
    call: Callable[[], Tensor | None], replaced: Collection[str], is_open: bool
) -> tuple[bool | None, dict[str, str]]:
    """Whether a call gives NaN, ``None`` if it raises or gives nothing, and the lines found."""
    answer: Tensor | None = None
    mode = _Sources(replaced, is_open)
    with contextlib.suppress(Exception, SystemExit), torch.no_grad(), mode:
        answer = call()
    return None if answer is None else _is_lost(answer), mode.lines


def _is_lost(answer: Tensor) -> bool:
    """Whether NaN is in an answer, or a row of scores is minus infinity."""
    return bool(answer.isnan().any() or (answer == -math.inf).all(-1).any())


def _noted(
    subject: Subject, name: str, calls: list[Any], module: nn.Module, inputs: Inputs
) -> Tensor | None:
    """What a subject's method gives, which is noted with the call."""
    answer: Tensor | None = getattr(subject, name)(module, inputs)
    calls.append((name, module, inputs, answer))
    return answer
