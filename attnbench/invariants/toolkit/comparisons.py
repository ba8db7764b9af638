"""Comparisons at the end of an invariant; they raise with the values, and NaN never agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.errors import InvariantViolation, RefusalError, headline
from attnbench.subject.tensors import largest

_TRIED, _FAR = 4, 1e6
"""After this many bounds, the last of at least 16 draws, an error of so many times it is sure.

More draws widen it by a small factor, or by a jump, which any draw shows as often as not.
"""

STANDARD_ERRORS = 6.0
"""How many a mean may be off by; a normal mean is beyond them twice in 10⁹.

With a band for what is allowed to differ, a right subject is called wrong at most once in a million
runs. Six, not five, since squares of normals are skewed, which widens the tails of the mean.
"""


def needs(value: Tensor | None) -> Tensor:
    """Return the tensor if the subject has it; otherwise reject the case."""
    if value is None:
        reject("the subject has none")
    return value


def reject(reason: str) -> NoReturn:
    """Reject a case without a verdict; it counts neither for nor against the subject."""
    from hypothesis.errors import UnsatisfiedAssumption  # 0.4 s, already imported in checks

    raise UnsatisfiedAssumption(reason)


def _place(flat: int, shape: torch.Size) -> list[int]:
    return [*map(int, np.unravel_index(flat, shape))]  # torch's imports sympy, which takes 0.5 s


def holds(condition: Tensor, what: str, values: Tensor, should: str) -> None:
    """Raise at the first element at which a condition is false.

    Args:
        condition: boolean tensor.
        what: name of the values in the message, as an expression.
        values: values in the shape of the condition.
        should: their expected value in the message, such as ``"0"`` or ``"at least 0"``.
    """
    bad = (~condition).flatten()
    if bool(bad.any()):
        first = int(bad.to(torch.uint8).argmax())
        value = values.detach().flatten()[first].item()
        place = _place(first, condition.shape)
        raise InvariantViolation(
            quantity=what,
            place=place,
            got=value,
            expected=should,
            compared={"condition": condition, "values": values},
        )


def agree_within(
    got: Tensor,
    expected: Tensor,
    tolerance: Tensor | float,
    what: str,
    other: str | None,
    *,
    why: str = "",
) -> None:
    """Raise if two tensors differ by more than a tolerance, with the worst element.

    Args:
        got, expected: tensors, compared in float64; a NaN on either side never agrees, and an
            infinity only agrees with the same one.
        tolerance: largest allowed absolute difference, broadcasts to ``got``.
        what: name of ``got`` in the message.
        other: name of ``expected`` in the message; ``None`` if it is simply the expected value.
        why: end of the message.
    """
    if got.shape != expected.shape:
        raise InvariantViolation(
            f"{what} has shape {tuple(got.shape)}, "
            f"but {other or 'what it should be'} has {tuple(expected.shape)}",
            quantity=f"{what}.shape",
            got=str(tuple(got.shape)),
            expected=str(tuple(expected.shape)),
            other=other or "",
        )
    if got.numel() == 0:
        return
    a, b = got.detach().cpu().double(), expected.detach().cpu().double()
    allowed = torch.as_tensor(tolerance, dtype=torch.float64).detach().cpu().expand(a.shape)
    if bool(((a - b).abs() <= allowed).all()):
        return
    excess = (a - b).abs() / allowed.clamp_min(1e-300)
    excess = excess.masked_fill(a == b, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = int(excess.flatten().argmax())
    x, y, t, factor = (float(v.flatten()[worst]) for v in (a, b, allowed, excess))
    if factor > 1.0:
        violation = InvariantViolation(
            quantity=what,
            place=_place(worst, a.shape),
            got=x,
            expected=y,
            other=other or "",
            allowed=t,
            error=factor if t else float("inf"),
            compared={"got": got, "expected": expected},
        )
        raise violation.reworded(f"{violation}: {why}") if why else violation


def within(got: Tensor, expected: Tensor, allowed: Iterator[Tensor], what: str, other: str) -> None:
    """Pass by the cheapest sufficient bound; fail by the surest one, or where it is far beyond."""
    violation = None
    for number, bound in enumerate(allowed):
        try:
            return agree_within(got, expected, bound, what, other)
        except InvariantViolation as error:
            violation = error
            beyond = number >= _TRIED and (error.error or 0.0) > _FAR
            if beyond or not bool(got.isfinite().all()):
                break
    assert violation is not None
    raise violation


def fails(check: Callable[..., None], *arguments: object) -> bool:
    """Whether a check raises a violation, as to tell of another check's what it is due to."""
    return violation_of(check, *arguments) is not None


def violation_of(check: Callable[..., None], *arguments: object) -> InvariantViolation | None:
    """The violation that a check raises, or ``None``."""
    try:
        check(*arguments)
    except InvariantViolation as violation:
        return violation
    return None


def state_is_kept(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise if a module's state is no longer what it was before calls in evaluation mode."""
    now = module.state_dict()
    if now.keys() != before.keys():
        names = ", ".join(sorted(now.keys() ^ before.keys()))
        raise InvariantViolation(
            f"calls in evaluation mode added to state_dict(), or took from it, {names}; but it "
            "should stay as it is: a state that was saved before could not be loaded after"
        )
    for name, tensor in now.items():
        if not torch.equal(tensor, before[name]):
            raise InvariantViolation(
                f"state_dict()[{name!r}] was changed by calls in evaluation mode, but should stay "
                "as it is: the same inputs would not give the same output"
            )


def differentiate(
    output: Tensor, wanted: Sequence[Tensor], weight: Tensor | None = None, **given: Any
) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad`` with ``None`` for unused inputs; exceptions become violations."""
    try:
        return torch.autograd.grad(output, list(wanted), weight, allow_unused=True, **given)
    except RefusalError:
        raise
    except Exception as error:
        raise InvariantViolation(f"the backward pass raised {headline(error)}") from error


def same_gradient(
    got: Tensor | None, expected: Tensor | None, what: str, other: str, *, eps: float = 0.0
) -> None:
    """Raise if two gradients differ by more than the order of sums explains; ``None`` is zeros.

    Args:
        got, expected, what, other: as for :func:`agree_within`.
        eps: one unit in the last place of the dtype of the computation, if it is not theirs.
    """
    known = expected if got is None else got
    if known is None:
        return
    a, b = (torch.zeros_like(known) if g is None else g for g in (got, expected))
    tolerance = 256 * max(eps, torch.finfo(a.dtype).eps) * max(largest(b), 1.0)
    agree_within(a, b, tolerance, what, other)


def same_gradients(
    got: Tensor,
    expected: Tensor,
    leaves: Mapping[str, Tensor],
    weight: Tensor,
    what: str,
    other: str,
    *,
    eps: float = 0.0,
) -> None:
    """Compare the gradients of two outputs by named leaves.

    An output that consists of zeros only may have no graph; its gradients are zeros.
    """
    wanted = list(leaves.values())
    pairs = [
        differentiate(output, wanted, weight) if output.requires_grad else (None,) * len(wanted)
        for output in (got, expected)
    ]
    for name, one, two in zip(leaves, *pairs, strict=True):
        same_gradient(one, two, f"{what}, the gradient by {name}", other, eps=eps)


def agree(got: Tensor, expected: Tensor, what: str, other: str, *, units: float = 16.0) -> None:
    """Raise if two computations that differ only in the order of sums differ by more than that."""
    size = max(largest(expected), torch.finfo(torch.float32).tiny)
    agree_within(got, expected, units * torch.finfo(expected.dtype).eps * size, what, other)
