"""Comparisons that an invariant ends with: they raise with the values, and NaN never agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor, nn

from attnbench.errors import InvariantViolation
from attnbench.inputs import Inputs
from attnbench.oracles import Oracle
from attnbench.specs import MechanismSpec
from attnbench.subject import Subject

__all__ = ["agree", "agree_within", "holds", "needs", "reject", "row_tolerance", "same"]


def needs(value: Tensor | None) -> Tensor:
    """The tensor, if the subject has it; else the case is rejected."""
    if value is None:
        reject("the subject has none")
    return value


def reject(reason: str) -> NoReturn:
    """Reject a case that says nothing; it counts neither for nor against the subject."""
    raise UnsatisfiedAssumption(reason)


def _index(flat: int, shape: torch.Size) -> str:
    place = torch.unravel_index(torch.tensor(flat), tuple(shape))
    return "[" + ", ".join(str(int(i)) for i in place) + "]"


def holds(condition: Tensor, what: str, values: Tensor, should: str) -> None:
    """Raise at the first element at which a condition is false.

    Args:
        condition: boolean.
        what: what the values are, as an expression.
        values: in the shape of the condition.
        should: what they should be, ``"0"`` or ``"at least 0"``.
    """
    bad = (~condition).flatten()
    if bool(bad.any()):
        first = int(bad.to(torch.uint8).argmax())
        value = values.detach().flatten()[first].item()
        raise InvariantViolation(
            f"{what}{_index(first, condition.shape)} = {value:.6g}, but should be {should}"
        )


def agree_within(
    got: Tensor, expected: Tensor, tolerance: Tensor | float, what: str, other: str
) -> None:
    """Raise where two tensors differ by more than a tolerance, at the worst element.

    Args:
        got, expected: compared in float64; a NaN on either side never agrees, and an infinity only
            with the same one.
        tolerance: largest absolute difference, broadcasts to ``got``.
        what: what ``got`` is.
        other: what ``expected`` is.
    """
    if got.shape != expected.shape:
        raise InvariantViolation(
            f"{what} has shape {tuple(got.shape)}, but {other} has {tuple(expected.shape)}"
        )
    if got.numel() == 0:
        return
    a, b = got.detach().cpu().double(), expected.detach().cpu().double()
    allowed = torch.as_tensor(tolerance, dtype=torch.float64).cpu().expand(a.shape)
    excess = (a - b).abs() / allowed.clamp_min(1e-300)
    excess = excess.masked_fill(a == b, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = int(excess.flatten().argmax())
    factor = float(excess.flatten()[worst])
    if factor > 1.0:
        x, y, t = (float(v.flatten()[worst]) for v in (a, b, allowed))
        raise InvariantViolation(
            f"{what}{_index(worst, a.shape)} = {x:.6g}, but {other} has {y:.6g} "
            f"(± {t:.2g}; off by {factor:.3g} times that)",
            error=factor,
        )


def row_tolerance(tensor: Tensor, units: float = 16.0) -> Tensor:
    """``(..., 1)``: some units in the last place of each row's largest value, and of the tensor's.

    For two computations of one thing that may differ in the order of sums.
    """
    eps = torch.finfo(tensor.dtype).eps
    wide = tensor.detach().double().nan_to_num(0.0, 0.0, 0.0)
    if wide.numel() == 0:
        return torch.zeros(*tensor.shape[:-1], 1, dtype=torch.float64)
    largest = wide.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    return (units * eps * largest).expand(*tensor.shape[:-1], 1)


def agree(got: Tensor, expected: Tensor, what: str, other: str, *, units: float = 16.0) -> None:
    """Raise where two computations of one thing differ by more than rounding."""
    agree_within(got, expected, row_tolerance(expected, units), what, other)


def same(
    got: Tensor,
    expected: Tensor,
    what: str,
    other: str,
    *,
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    taken: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> None:
    """Raise where two outputs, computed in two ways, differ by more than rounding explains.

    A difference of some units in the last place always passes. A larger one is held against what
    rounding the inputs does to the output, which is worked out only then: large scores and near
    ties magnify it, and both computations may be off by so much.

    Args:
        got: the output of derived inputs.
        expected: ``taken(output of inputs)``.
        what, other: what they are.
        subject, module, inputs: what gave the output that ``expected`` was taken from.
        taken: what was taken of it; also taken of the budget, which has the output's shape.
    """
    sizes = [t.detach().double().nan_to_num(0.0, 0.0, 0.0).abs() for t in (expected, inputs.value)]
    largest = max(float(size.amax()) if size.numel() else 0.0 for size in sizes)
    tolerance = 16 * torch.finfo(got.dtype).eps * max(largest, torch.finfo(torch.float32).tiny)
    try:
        agree_within(got, expected, tolerance, what, other)
    except InvariantViolation:
        if got.shape != expected.shape or not bool(got.isfinite().all()):
            raise
    else:
        return
    for sure in (False, True):
        rounding = taken(_rounding(subject, module, inputs, sure)).expand_as(expected)
        try:
            agree_within(got, expected, 2 * rounding.nan_to_num(0.0) + tolerance, what, other)
        except InvariantViolation:
            if sure:
                raise
        else:
            return


def _rounding(subject: Subject, module: nn.Module, inputs: Inputs, sure: bool) -> Tensor:
    """The output's budget ``(*lead, L, Ev)``; of a mechanism without float64, in its own dtype."""
    if not isinstance(subject.spec, MechanismSpec) or "float64" in subject.dtypes:
        return Oracle(subject, module, inputs).budget(sure=sure)
    eps = torch.finfo(inputs.query.dtype).eps
    signs = torch.Generator().manual_seed(0)

    def moved(tensor: Tensor) -> Tensor:
        up = torch.randint(2, tensor.shape, generator=signs).to(tensor) * 2 - 1
        return tensor * (1 + eps * up)

    with torch.no_grad():
        base = subject.output(module, inputs).double()
        largest = torch.zeros_like(base)
        for _ in range(64 if sure else 4):
            change = subject.output(module, inputs.map(moved)).double() - base
            largest = torch.maximum(largest, change.abs().nan_to_num(0.0))
    return 4 * largest.amax(-1, keepdim=True).expand_as(base)
