"""A case's output, and what another computation of the same thing may differ from it by.

Most invariants compare two outputs that should be one: with keys in another order, an item alone,
masked slots filled with junk. Two right computations of one thing still differ by rounding, which
large scores and near ties magnify, so a difference is held against what rounding the inputs does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation, UsageError
from attnbench.invariants.toolkit.comparisons import agree_within, reject
from attnbench.oracle.budget import Oracle
from attnbench.oracle.references import allowed_and_bias
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = ["Baseline"]

_HALF = ("bfloat16", "float16")

_NEAR = 64.0
"""How far off, as a multiple of what the first look allows, is worth a second one."""


class Baseline:
    """A subject's output at a case, which outputs of derived inputs are compared with.

    Args:
        subject: is built from the case's seed.
        case: in half precision a saturated softmax is rejected: there the rounding of a score
            decides which key wins.
    """

    def __init__(self, subject: Subject, case: Case) -> None:
        if case.regime == "huge" and case.dtype in _HALF:
            reject("in half precision rounding decides which key wins")
        module, inputs = subject.build(case)
        self.subject, self.case = subject, case
        self.module: nn.Module = module
        self.inputs: Inputs = inputs
        # for what a check chooses itself: not the numbers that the inputs were drawn with
        self.generator = torch.Generator().manual_seed(~case.seed % 2**32)

    def on(self, inputs: Inputs) -> Baseline:
        """The same module on other inputs, as a baseline of their own."""
        other = object.__new__(type(self))
        other.__dict__.update(
            {k: v for k, v in self.__dict__.items() if k not in ("output", "allowed")},
            inputs=inputs,
        )
        return other

    @property
    def eps(self) -> float:
        """One unit in the last place, relative, of what the subject computes in."""
        return self.subject.eps(self.inputs.query.dtype)

    def choose(self, count: int) -> int:
        """One of ``0 .. count - 1``, from the case's seed."""
        return int(torch.randint(count, (), generator=self.generator))

    @functools.cached_property
    def allowed(self) -> Tensor:
        """``(*lead, L, S)``: which keys are left, by definition, not by the code under test."""
        return allowed_and_bias(self.inputs)[0].to(self.inputs.query.device)

    @functools.cached_property
    def output(self) -> Tensor:
        """The output ``(*lead, L, Ev)``."""
        return self.run(self.inputs)

    def run(self, inputs: Inputs) -> Tensor:
        """The output of derived inputs; rejects what a kernel says that it cannot run."""
        try:
            return self.subject.output(self.module, inputs)
        except UsageError as error:
            if self.subject.kind != "kernel":
                raise
            reject(str(error))

    def repeat(self, what: str, other: str) -> None:
        """Raise where the same call gives another output than the first time.

        No allowance for input rounding: a module whose state changed would round differently as
        well.
        """
        expected = self.output.detach()
        largest = float(expected.double().abs().nan_to_num(0.0).amax()) if expected.numel() else 0.0
        tolerance = 64 * self.eps * largest
        agree_within(self.run(self.inputs), expected, tolerance, what, other)

    def expect(
        self,
        got: Tensor,
        what: str,
        other: str,
        *,
        taken: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        """Raise where ``got`` differs from ``taken(self.output)`` by more than rounding explains.

        A difference of some units in the last place always passes. For a larger one it is worked
        out what rounding does, in some calls, and where that is near, more carefully in many.

        Args:
            got: the output of derived inputs.
            what: what it is, before its index.
            other: what it should be equal to.
            taken: the part or order of the output that it should be equal to.
        """
        expected = taken(self.output)
        if got.dtype == expected.dtype and torch.equal(got, expected):
            return None
        sizes = [expected.detach().double(), self.inputs.value.detach().double()]
        finite = [t.nan_to_num(0.0, 0.0, 0.0).abs() for t in sizes]
        largest = max(float(t.amax()) if t.numel() else 0.0 for t in finite)
        tolerance = 16 * self.eps * max(largest, torch.finfo(torch.float32).tiny)
        try:
            return agree_within(got, expected, tolerance, what, other)
        except InvariantViolation:
            if got.shape != expected.shape or not bool(got.isfinite().all()):
                raise
        try:
            return agree_within(got, expected, taken(self._moved) + tolerance, what, other)
        except InvariantViolation as violation:
            wide = "float64" in self.subject.dtypes
            if not wide or violation.error is None or violation.error > _NEAR:
                raise
        budget = Oracle(self.subject, self.module, self.inputs).budget(sure=True)
        budget = budget.expand(self.output.shape).to(self.output.device).nan_to_num(0.0)
        return agree_within(got, expected, 2 * taken(budget) + tolerance, what, other)

    @functools.cached_property
    def _moved(self) -> Tensor:
        """What moving the inputs by some units in their last place does to the output, at most.

        In the subject's own dtype, so that what it rounds inside counts too. Half of the moves are
        large enough to tip a near tie over, as rounding may.
        """
        eps = self.eps
        signs = torch.Generator().manual_seed(0)
        largest = torch.zeros_like(self.output, dtype=torch.float64)
        with torch.no_grad():
            still = self.run(self.inputs).double()  # without gradients another path may be taken
            for draw in range(32):
                step = eps if draw % 2 else 4 * eps

                def moved(tensor: Tensor, step: float = step) -> Tensor:
                    up = torch.randint(2, tensor.shape, generator=signs) * 2 - 1
                    return tensor * (1 + step * up.to(tensor))

                change = self.run(self.inputs.map(moved)).double() - still
                largest = torch.maximum(largest, change.abs().nan_to_num(0.0))
        return 2 * largest.amax(-1, keepdim=True).expand(largest.shape)
