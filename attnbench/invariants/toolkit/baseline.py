"""The output at a case, and the allowed difference of another computation of the same quantity.

Most invariants compare two outputs that should be equal: with keys in another order, with an item
alone, with junk in masked slots. Two correct computations still differ by rounding, which large
scores and near ties magnify. A difference is therefore compared with the effect of rounding the
inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation, UsageError
from attnbench.invariants.toolkit.comparisons import agree_within, reject, within
from attnbench.oracle.budget import Oracle
from attnbench.oracle.operations import change_by_moves
from attnbench.oracle.references import allowed_and_bias
from attnbench.subject.devices import seed
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, largest

_NEAR = 64.0
"""Differences up to this multiple of the quick estimate are compared with a careful one."""


class Baseline:
    """A subject's output at a case, for comparison with outputs of derived inputs.

    Args:
        subject: subject, built from the case's seed.
        case: a case; a saturated softmax in half precision is rejected, since the rounding of a
            score then decides which key wins.
    """

    def __init__(self, subject: Subject, case: Case) -> None:
        if case.regime == "huge" and case.is_narrow:
            reject("in half precision rounding decides which key wins")
        module, inputs = subject.build(case)
        self.subject, self.case = subject, case
        self.module: nn.Module = module
        self.inputs: Inputs = inputs
        self._derived: Inputs = inputs
        # for choices of the check; independent of the numbers with which inputs were drawn
        self.generator = torch.Generator().manual_seed(~case.seed % 2**32)

    def on(self, inputs: Inputs) -> Baseline:
        """A baseline of the same module on other inputs."""
        other = object.__new__(type(self))
        for name, held in vars(self).items():
            if not isinstance(getattr(type(self), name, None), functools.cached_property):
                setattr(other, name, held)  # what is computed from the inputs is computed anew
        other.inputs = inputs
        return other

    @property
    def eps(self) -> float:
        """One relative unit in the last place of the dtype in which the subject computes."""
        return self.subject.eps(self.inputs.query.dtype)

    def choose(self, count: int) -> int:
        """Choose one of ``0 .. count - 1`` by the case's seed."""
        return int(torch.randint(count, (), generator=self.generator))

    def other(self, tensor: Tensor) -> Tensor:
        """Random numbers in the shape of a tensor."""
        return torch.randn(tensor.shape, generator=self.generator).to(tensor)

    @functools.cached_property
    def allowed(self) -> Tensor:
        """``(*lead, L, S)``: the allowed keys by definition, not by the code under test."""
        return allowed_and_bias(self.inputs)[0].to(self.inputs.query.device)

    @functools.cached_property
    def output(self) -> Tensor:
        """The output ``(*lead, L, Ev)``."""
        return self.run(self.inputs)

    def run(self, inputs: Inputs) -> Tensor:
        """The output of derived inputs; rejects the case if a kernel does not support them."""
        self._derived = inputs
        try:
            return self.subject.output(self.module, inputs)
        except UsageError as error:
            if self.subject.kind != "kernel":
                raise
            reject(str(error))

    def repeat(self, what: str, other: str) -> None:
        """Raise if the same call gives another output than the first time.

        No allowance for input rounding: a module whose state changed would round differently as
        well.
        """
        tolerance = 64 * self.eps * largest(self.output)
        agree_within(self.run(self.inputs), self.output, tolerance, what, other)

    def expect(
        self,
        got: Tensor,
        what: str,
        other: str,
        *,
        taken: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        """Raise if ``got`` differs from ``taken(self.output)`` by more than rounding explains.

        A difference of some units in the last place always passes. For a larger one, the effect of
        rounding is estimated with a few calls and, if it is close, more carefully with many.

        Args:
            got: output of derived inputs, those of the last run.
            what: name of ``got`` in the message, before its index.
            other: name of the expected output in the message.
            taken: selects or reorders the output to which ``got`` should be equal.
        """
        derived, expected = self._derived, taken(self.output)
        if got.dtype == expected.dtype and torch.equal(got, expected):
            return None
        size = max(largest(expected, self.inputs.value), torch.finfo(torch.float32).tiny)
        tolerance = 16 * self.eps * size
        try:
            return agree_within(got, expected, tolerance, what, other)
        except InvariantViolation:
            if got.shape != expected.shape or not bool(got.isfinite().all()):
                raise
        try:
            return agree_within(got, expected, taken(self._moved) + tolerance, what, other)
        except InvariantViolation as violation:
            # the other inputs may round elsewhere
            places = (base.rounding_near(violation, _NEAR) for base in (self, self.on(derived)))
            both = zip(*places, strict=True)
            allowed = (tolerance + self._wider(here, there, taken) for here, there in both)
            return within(got, expected, allowed, what, other)

    def _wider(self, here: Tensor, there: Tensor, taken: Callable[[Tensor], Tensor]) -> Tensor:
        """The larger one of what rounding may change in each place, for the rows compared."""
        here, own = taken(here), there
        if own.shape != here.shape and own.shape == self.output.shape:
            own = taken(own)  # the same rows of it are compared
        return torch.maximum(here, own) if own.shape == here.shape else here

    def rounding_near(self, violation: InvariantViolation, near: float) -> Iterator[Tensor]:
        """Yield by how much two right computations of the output may differ, ``(*lead, L, Ev)``.

        Each estimate takes more calls than the one before and is at least as large. They are only
        for a difference that is close.

        Args:
            violation: what a quicker estimate said.
            near: largest multiple of that estimate that is close.

        Raises:
            InvariantViolation: ``violation``, if it is not close, or there is no run in float64.
        """
        wide = "float64" in self.subject.dtypes
        if not wide or violation.error is None or violation.error > near:
            raise violation
        for budget in Oracle(self.subject, self.module, self.inputs).sure_budgets():
            yield 2 * budget.expand(self.output.shape).to(self.output.device).nan_to_num(0.0)

    @functools.cached_property
    def _moved(self) -> Tensor:
        """The largest change of the output when inputs move by some units in the last place.

        It is computed in the subject's own dtype to include internal rounding. Half of the moves
        are large enough to tip a near tie, as rounding may.
        """
        steps = (4 * self.eps, self.eps) * 16
        with torch.no_grad():
            still = self.run(self.inputs)  # without gradients another path may run
        change = change_by_moves(lambda move: self.run(self.inputs.map(move)), still, steps)
        return 2 * change.amax(-1, keepdim=True).expand(change.shape)


class SameDraws(Baseline):
    """A baseline in training mode, whose every call draws the same numbers from the same state."""

    def __init__(self, subject: Subject, case: Case) -> None:
        super().__init__(subject, case)
        self.kept = {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    def seeded(self) -> nn.Module:
        """The module, before its next call."""
        seed(self.case.device, self.case.seed)
        for name, kept in self.kept.items():
            buffer = self.module.get_buffer(name)
            if not torch.equal(buffer, kept):  # a training call has moved it, as a spectral norm's
                buffer.copy_(kept)
        self.module.train()
        return self.module

    def run(self, inputs: Inputs) -> Tensor:
        """The output."""
        self.seeded()
        return super().run(inputs)
