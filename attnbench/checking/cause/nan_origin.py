"""The line of a subject in which the NaN of an output arises."""

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

    Attributes:
        lines: each ``name at file.py:line: source``, in order, and whether NaN is among its values.
    """

    def __init__(self, replaced: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.replaced = replaced
        self.lines: dict[str, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_fine = not _overflowing((args, kwargs))  # asked first: it may write into them
        result = func(*args, **(kwargs or {}))
        if is_fine and (wrong := _overflowing(result)) and (line := line_of(func)):
            self.lines[line] = self.lines.get(line, False) or any(
                bool(t.isnan().any()) for t in wrong
            )
            for tensor in wrong if line in self.replaced else ():
                tensor.masked_fill_(~(tensor < math.inf), 0.0)
        return result


def _overflowing(values: Any) -> list[Tensor]:
    """The tensors with NaN or infinity; minus infinity may stand for what is hidden."""
    tensors = (one for one in tree_leaves(values) if isinstance(one, Tensor))
    return [t for t in tensors if t.is_floating_point() and not bool((t < math.inf).all())]


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
        finite = finite and not _overflowing(getattr(inputs, "attn_mask", None))
        if finite and answer is not None and bool(answer.isnan().any()):
            return _needed(functools.partial(getattr(subject, name), module, inputs))
    return ""


def _needed(call: Callable[[], Tensor | None]) -> str:
    """The first of the lines whose NaN and infinity have to become 0, in words."""
    found: dict[str, bool] = {}
    while (state := _run(call, found))[0]:
        if state[1].keys() <= found.keys() or len(found) > _MOST_LINES:
            return ""
        found |= {line: is_nan for line, is_nan in state[1].items() if line not in found}
    if state[0] is None:
        return ""
    needed = list(found)
    for line in reversed(found):  # what comes later may follow from what came before
        others = [other for other in needed if other != line]
        if _run(call, others)[0] is False:
            needed = others
    if not needed:  # called again, it gives no NaN
        return ""
    line = needed[0]
    return f"NaN {'arises' if found[line] else 'follows from infinity'} in {line}"


def _run(
    call: Callable[[], Tensor | None], replaced: Collection[str]
) -> tuple[bool | None, dict[str, bool]]:
    """Whether a call gives NaN, ``None`` if it raises or gives nothing, and the lines found."""
    answer: Tensor | None = None
    mode = _Sources(replaced)
    with contextlib.suppress(Exception, SystemExit), torch.no_grad(), mode:
        answer = call()
    return None if answer is None else bool(answer.isnan().any()), mode.lines


def _noted(
    subject: Subject, name: str, calls: list[Any], module: nn.Module, inputs: Inputs
) -> Tensor | None:
    """What a subject's method gives, which is noted with the call."""
    answer: Tensor | None = getattr(subject, name)(module, inputs)
    calls.append((name, module, inputs, answer))
    return answer
