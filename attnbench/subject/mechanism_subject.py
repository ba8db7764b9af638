"""Mechanisms as subjects: called themselves, with what they accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import DtypeError, RefusalError, ShapeError
from attnbench.specs import MechanismSpec
from attnbench.subject.invocation import arguments, held, refused
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


@dataclass(frozen=True, eq=False, repr=False)
class MechanismSubject(Subject):
    """A mechanism, with its options."""

    size_count: ClassVar[int] = 3

    spec: MechanismSpec

    @property
    def maker(self) -> MechanismSpec:
        """Its spec."""
        return self.spec

    @property
    def accepts(self) -> tuple[str, ...]:
        """The keyword arguments that it takes besides ``attn_mask``.

        ``return_weights`` is one of them if it always returns the weights.
        """
        own = self.spec.accepts
        always = "weights" in self.spec.returns and "return_weights" not in own
        return (*own, "return_weights") if always else own

    def unsupported(self, case: Case) -> str | None:
        """The reason why it does not support a case, or ``None``."""
        return refused(case, self.accepts, self.conventions)

    def output(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output ``(..., L, Ev)`` of a module from :meth:`build`."""
        result = self._call(module, inputs, return_weights=False)
        output = result[0] if isinstance(result, tuple) else result
        return held(output, self.name, inputs, inputs.value.shape[-1])

    def output_and_weights(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """The output ``(..., L, Ev)`` and weights ``(..., L, S)`` that it returns."""
        result = self._call(module, inputs, return_weights=True)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DtypeError(
                f"{self.name} accepts return_weights, but gave {type(result).__name__} "
                "instead of (output, weights)."
            )
        output = held(result[0], self.name, inputs, inputs.value.shape[-1])
        if result[1] is None:
            return output, None
        kv_len, own = inputs.key.shape[-2], self.conventions.extra_keys
        weights = held(result[1], self.name, inputs, kv_len + own if own else kv_len, "weights")
        return output, weights[..., :kv_len]

    def output_and_log_sums(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)`` and log-sum-exp ``(..., L)``, for one that returns them.

        Raises:
            DtypeError, ShapeError: either violates the contract.
        """
        result = self._call(module, inputs, return_weights=False)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Tensor):
            raise DtypeError(
                f"{self.name} declares returns={self.spec.returns}, but gave "
                f"{_told(result)} instead of (output, lse)."
            )
        output = held(result[0], self.name, inputs, inputs.value.shape[-1])
        rows, lse = tuple(inputs.query.shape[:-1]), result[1]
        if tuple(lse.shape) != rows or not lse.is_floating_point():
            raise ShapeError(
                f"{self.name} returned an lse of shape {tuple(lse.shape)} in {lse.dtype} for query "
                f"{tuple(inputs.query.shape)}, but should return {rows}, one number a query, in a "
                "floating dtype.",
            )
        return output, lse

    def _call(self, module: nn.Module, inputs: Inputs, *, return_weights: bool) -> Any:
        """Call a mechanism with accepted options; others are folded into its ``attn_mask``."""
        try:
            keywords = arguments(inputs, self.accepts, self.conventions)
        except RefusalError as refusal:
            raise RefusalError(f"{self.name} {refusal}") from None
        if return_weights and "return_weights" in self.spec.accepts:
            keywords["return_weights"] = True
        return module(inputs.query, inputs.key, inputs.value, **keywords)


def _told(result: Any) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(one).__name__ for one in result)})"
    return type(result).__name__
