"""Which term of a formula is wrong: with what taken for 0, and how far away, scores are right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.cases.case import Case
from attnbench.checking.cause.beside_reference import scores_of_reference
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs
from attnbench.subject.tracing import calling_line

_CASE = Case((1,), 5, 7, 8, 8, 8, dtype="float64", seed=3)
_NEAR = 1e-7
_MOST = 3
"""Most distances, or parameters, that are told one by one."""


def wrong_term(subject: Subject) -> str:
    """In which term the scores are not those of the reference, as far as calls show it.

    A parameter is set to 0, one at a time, and query or key. Where that makes the scores those of
    the reference, which still depend on the keys, the error is in what it takes part in.
    """
    module, inputs = subject.build(subject.legal(_CASE))
    with torch.no_grad():
        if _is_right(gaps := _gaps(subject, module, inputs)):
            return ""
        return _by_zeros(subject, module, inputs) + _by_distance(gaps[0])


def _gaps(subject: Subject, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """By how much scores are off, and the expected ones, both less what softmax removes."""
    expected = scores_of_reference(subject, module, inputs)
    got = subject.scores(module, inputs)
    assert got is not None
    off = got.double() - expected
    even = expected - expected.mean(-1, keepdim=True)
    return off, even


def _is_right(gaps: tuple[Tensor, Tensor]) -> bool:
    off, even = gaps
    size = even.abs().max()
    rest = off - off.mean(-1, keepdim=True)
    return bool(size > _NEAR and (rest.abs() <= _NEAR * size).all())


def _by_zeros(subject: Subject, module: nn.Module, inputs: Inputs) -> str:
    right, lines = list[str](), dict[str, str]()
    before = _steps(subject, module, inputs)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not tensor.is_floating_point():
            continue
        with _zero(tensor):
            if _is_right(_gaps(subject, module, inputs)):
                right.append(name.removeprefix("module."))
                lines[right[-1]] = _entry(before, _steps(subject, module, inputs), inputs)
    for name in ("query", "key"):
        given = inputs.replace(**{name: getattr(inputs, name) * 0})
        if _is_right(_gaps(subject, module, given)):
            right.append(f"the {name}")
    if not 0 < len(right) <= _MOST:
        return ""
    told = f"\n  it is right where {' or '.join(right)} is 0"
    alone = next(((name, line) for name, line in lines.items() if line), None)
    return told if alone is None else f"{told}; {alone[0]} reaches the scores in {alone[1]}"


@contextlib.contextmanager
def _zero(tensor: Tensor) -> Iterator[None]:
    held = tensor.detach().clone()
    try:
        tensor.zero_()
        yield
    finally:
        tensor.copy_(held)


@dataclass(frozen=True)
class _Step:
    """An operation: its line, what it is given and gives, and a copy of that."""

    line: str
    given: list[Any]
    result: Tensor
    copy: Tensor


class _Steps(OperationMode):
    """Keeps what each operation is given and gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.steps: list[_Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            step = _Step(calling_line(), tree_leaves((args, kwargs)), result, result.clone())
            self.steps.append(step)
        return result


def _steps(subject: Subject, module: nn.Module, inputs: Inputs) -> list[_Step]:
    with _Steps() as mode:
        subject.scores(module, inputs)
    steps: list[_Step] = mode.steps
    return steps


def _entry(before: list[_Step], after: list[_Step], inputs: Inputs) -> str:
    """The one line that first gives other numbers for queries and keys, in two calls that differ;
    ``""`` if several do, none of which is given what another gives.
    """
    pairs = (inputs.query.shape[-2], inputs.key.shape[-2])
    lines, others = list[str](), set[int]()
    for one, other in zip(before, after, strict=False):
        if one.line != other.line or one.copy.shape != other.copy.shape:
            return ""
        if one.copy.shape[-2:] == pairs and not torch.equal(one.copy, other.copy):
            if others.isdisjoint(map(id, one.given)):
                lines.append(one.line)
            others.add(id(one.result))
    return lines[0] if len(lines) == 1 else ""


def _by_distance(off: Tensor) -> str:
    """Where the scores are right at some distances of key and query, whatever else they are."""
    wrong = (off.abs() > _NEAR * off.abs().max()).flatten(0, -3).any(0)
    shift = wrong.shape[-1] - wrong.shape[-2]
    off_at = {d: wrong.diagonal(d + shift) for d in range(1 - wrong.shape[-1], wrong.shape[-2])}
    seen = {distance: cells for distance, cells in off_at.items() if cells.numel()}
    bad = [distance for distance, cells in seen.items() if bool(cells.all())]
    good = [distance for distance, cells in seen.items() if not bool(cells.any())]
    if not good or not bad or len(good) + len(bad) < len(seen):
        return ""
    told, how = (good, "right") if len(good) <= len(bad) else (bad, "wrong")
    if len(told) > _MOST:
        return ""
    distances = f"{', '.join(map(str, told))} alone {'are' if told[1:] else 'is'} {how}"
    return f"\n  of the distances j - i of key and query, {distances}"
