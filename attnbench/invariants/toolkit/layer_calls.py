"""A layer at a case, called without a cache, and the decorator of a layer's invariants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import CaseStrategy, cases
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.comparisons import reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

_LARGE = {"float64": 1e4, "float32": 1e3, "bfloat16": 64.0, "float16": 16.0}


def layer_cases(subject: Subject, **narrowed: Any) -> CaseStrategy:
    """Short cases of a layer, by default without a mask."""
    tokens = getattr(subject.spec, "tokens", None) or 0
    chosen: dict[str, Any] = {
        "masks": ("none",),
        "layouts": ("contiguous",),
        "regimes": ("normal", "equal_keys"),
        "max_len": max(17, tokens),
        "max_features": 17,
    }
    return cases(subject, **{**chosen, **narrowed})


def layer_invariant(
    *, cases: Callable[..., CaseStrategy] = layer_cases, **declared: Any
) -> Callable[[Callable[[LayerCase], None]], Invariant]:
    """A decorator that makes an invariant on layers of a check of a :class:`LayerCase`.

    Args:
        cases, declared: arguments of :func:`attnbench.testing.invariant`.
    """

    def made(check: Callable[[LayerCase], None]) -> Invariant:
        @functools.wraps(check)
        def checked(subject: Subject, case: Case) -> None:
            check(LayerCase(subject, case))

        return invariant(cases=cases, kinds=("layer",), **declared)(checked)

    return made


class LayerCase:
    """The module and inputs of a case.

    Args:
        subject: a layer.
        case: case whose seed gives the parameters and all tensors.
    """

    def __init__(self, subject: Subject, case: Case) -> None:
        assert isinstance(subject, LayerSubject)
        self.subject, self.case = subject, case
        self.module, _ = subject.build(case)
        inputs = subject.inputs(case)
        self.hidden, self.mask = inputs.hidden, inputs.padding_mask
        self.generator = torch.Generator().manual_seed(case.seed + 2**30)

    def choose(self, count: int) -> int:
        """Choose one of ``0 .. count - 1`` by the case's seed."""
        return int(torch.randint(count, (), generator=self.generator))

    def other(self, hidden: Tensor) -> Tensor:
        """Other tokens of the same shape."""
        drawn = torch.randn(hidden.shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(hidden)

    def large(self) -> float:
        """A value for padding that is large, but leaves all results finite."""
        return _LARGE.get(self.case.dtype, 16.0)

    def run(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The unchanged output ``(B, L, E)``, under ``no_grad``."""
        with torch.no_grad():
            return self.call(hidden, mask)[0]

    def real(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(B, L, 1)``: where there is a real token."""
        if mask is None:
            return torch.ones(*hidden.shape[:-1], 1, dtype=torch.bool, device=hidden.device)
        return mask.unsqueeze(-1)

    def call(
        self, hidden: Tensor, mask: Tensor | None = None, cache: Any = None, **beside: Any
    ) -> tuple[Tensor, Any]:
        """Call the module; see :meth:`LayerSubject.call`."""
        return self.subject.call(self.module, hidden, mask, cache, **beside)

    def limits(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The effect of rounding on a call, ``(B, L, 1)``."""
        return rounding_of(self.subject, self.module, hidden, mask)

    def differs(
        self,
        got: Tensor,
        expected: Tensor,
        real: Tensor,
        allowed: Any = None,
        *,
        what: str = "output",
        other: str = "",
    ) -> InvariantViolation | None:
        """The violation at the worst place where two outputs differ by more than rounding.

        Args:
            got, expected: outputs.
            real: the elements to compare.
            allowed: returns the effect of rounding; by default that on the case's own call.
            what, other: names of the two outputs.
        """
        floor = floor_of(self.subject, expected, got.dtype)
        if worst_place(got, expected, floor, real) is None:
            return None
        limits = (self.rounding if allowed is None else allowed()).expand(got.shape)
        place = worst_place(got, expected, limits, real)
        if place is None:
            return None
        one, two, most = got[place].item(), expected[place].item(), float(limits[place])
        return InvariantViolation(
            quantity=what,
            place=place,
            got=one,
            expected=two,
            other=other,
            allowed=most,
            error=abs(one - two) / most if most else None,
            compared={"got": got, "expected": expected},
        )

    @functools.cached_property
    def rounding(self) -> Tensor:
        """The effect of rounding on the case's own call, ``(B, L, 1)``."""
        return self.limits(self.hidden, self.mask)

    def expect(
        self,
        got: Tensor,
        expected: Tensor,
        real: Tensor,
        what: str,
        other: str,
        *,
        allowed: Any = None,
    ) -> None:
        """Raise where two outputs differ; the arguments are those of :meth:`differs`."""
        violation = self.differs(got, expected, real, allowed, what=what, other=other)
        if violation is not None:
            raise violation

    def padded(self) -> Tensor:
        """The mask; rejects the case if nothing is padded."""
        if self.mask is None or bool(self.mask.all()):
            reject("nothing is padded")
        return self.mask


def worst_place(got: Tensor, expected: Tensor, allowed: Tensor | float, real: Tensor) -> Any:
    """The index at which two tensors exceed the allowed difference most; ``None`` if nowhere.

    NaN in both is no difference: ``keeps_the_contract`` tells of a layer that gives NaN.

    Args:
        got, expected: ``(B, L, E)``.
        allowed: allowed difference, broadcasts to them.
        real: boolean, broadcasts to them: the elements to compare.
    """
    if not got.numel():
        return None
    one, two = got.detach().cpu().double(), expected.detach().cpu().double()
    gap = (one - two).abs().nan_to_num(nan=float("inf"))
    excess = gap / torch.as_tensor(allowed, dtype=torch.float64)
    alike = (one == two) | (one.isnan() & two.isnan())
    excess = torch.where(real.cpu() & ~alike, excess, 0.0)
    worst = int(excess.flatten().argmax())
    if float(excess.flatten()[worst]) <= 1.0:
        return None
    return tuple(map(int, np.unravel_index(worst, got.shape)))
