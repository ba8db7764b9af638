"""A layer at a case, called without a cache: common parts of invariants on padding and order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import CaseStrategy, cases
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.applicability import accepts
from attnbench.invariants.toolkit.comparisons import reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of, worst_place
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

_LARGE = {"float64": 1e4, "float32": 1e3, "bfloat16": 64.0, "float16": 16.0}


def layer_cases(subject: Subject, **narrowed: Any) -> CaseStrategy:
    """Short cases of a layer, by default without a mask."""
    chosen: dict[str, Any] = {
        "masks": ("none",),
        "layouts": ("contiguous",),
        "regimes": ("normal", "equal_keys"),
        "max_len": 17,
        "max_features": 17,
    }
    return cases(subject, **{**chosen, **narrowed})


def listed(slots: list[int]) -> str:
    """Numbers in words, with runs as first to last."""
    runs: list[list[int]] = []
    for slot in sorted({*slots}):
        if runs and slot == runs[-1][-1] + 1:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


takes_padding = accepts("padding_mask")


def layer_invariant(
    *, cases: Callable[..., CaseStrategy] = layer_cases, **declared: Any
) -> Callable[[Callable[[LayerCase], None]], Invariant]:
    """A decorator that makes an invariant on layers of a check of a :class:`LayerCase`.

    Args:
        cases, declared: arguments of :func:`~attnbench.invariants.toolkit.decorator.invariant`.
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
