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
from attnbench.subject.tracing import line_of

_MOST_LINES = 12
"""Lines of a call, from which on no further ones are looked for."""


class _Sources(OperationMode):
    """Finds the operations that give NaN, or infinity, for what holds none.

    Args:
        replaced: the lines whose NaN and infinity become 0.
        is_open: whether no key is hidden, so that minus infinity counts as well.

    Attributes:
        lines: each ``name at file.py:line: source``, in order, and whether NaN is among its values.
    """

    def __init__(self, replaced: Collection[str], is_open: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.replaced, self.is_open = replaced, is_open
        self.lines: dict[str, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_fine = not self._overflowing((args, kwargs))  # asked first: it may write into them
        result = func(*args, **(kwargs or {}))
        if is_fine and (wrong := self._overflowing(result)) and (line := line_of(func)):
            self.lines[line] = self.lines.get(line, False) or any(
                bool(t.isnan().any()) for t in wrong
            )
            for tensor in wrong if line in self.replaced else ():
                tensor.masked_fill_(~tensor.isfinite(), 0.0)
        return result

    def _overflowing(self, values: Any) -> list[Tensor]:
        """The tensors with NaN or infinity; minus infinity may stand for what is hidden."""
        numbers = [
            torch.tensor(one) if isinstance(one, float) else one for one in tree_leaves(values)
        ]
        tensors = (t for t in numbers if isinstance(t, Tensor) and t.is_floating_point())
        return [
            t for t in tensors if not bool((t.isfinite() if self.is_open else t < math.inf).all())
        ]


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
    for name in ("output", "scores", "weights"):
        object.__setattr__(watched, name, functools.partial(_noted, subject, name, calls))
    with contextlib.suppress(Exception, SystemExit):
        invariant.check(watched, Case.from_id(failure.case))
    for name, module, inputs, answer in calls:
        finite = all(bool(t.isfinite().all()) for n, t in inputs.tensors() if n != "attn_mask")
        mask = getattr(inputs, "attn_mask", None)
        if answer is None or not finite or not (mask is None or bool((mask < math.inf).all())):
            continue
        is_open = subject.kind == "scoring" and bool(allowed_and_bias(inputs)[0].all())
        if bool(answer.isnan().any()):
            where = _needed(functools.partial(getattr(subject, name), module, inputs), is_open)
            return where and f"NaN {where}"
        scores = subject.scores(module, inputs) if is_open else None
        if scores is not None and _is_lost(scores):
            where = _needed(functools.partial(subject.scores, module, inputs), is_open)
            return where and f"a score of minus infinity {where}"
    return ""


def _needed(call: Callable[[], Tensor | None], is_open: bool) -> str:
    """The first of the lines whose NaN and infinity have to become 0, in words."""
    found: dict[str, bool] = {}
    while (state := _run(call, found, is_open))[0]:
        if state[1].keys() <= found.keys() or len(found) > _MOST_LINES:
            return ""
        found |= {line: is_nan for line, is_nan in state[1].items() if line not in found}
    if state[0] is None:
        return ""
    needed = list(found)
    for line in reversed(found):  # what comes later may follow from what came before
        others = [other for other in needed if other != line]
        if _run(call, others, is_open)[0] is False:
            needed = others
    if not needed:  # called again, it gives no NaN
        return ""
    line = needed[0]
    return f"{'arises' if found[line] else 'follows from infinity'} in {line}"


def _run(
    call: Callable[[], Tensor | None], replaced: Collection[str], is_open: bool
) -> tuple[bool | None, dict[str, bool]]:
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
