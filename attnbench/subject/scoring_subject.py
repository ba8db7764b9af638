"""Scoring functions as subjects, which ``attend`` runs on its plain path, and their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attnbench.attention.attend import attend, scores_of
from attnbench.cases.case import Case
from attnbench.specs import KernelSpec, ScoringSpec
from attnbench.subject.invocation import held
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_FOLDED = {"none": "none", "bias": "floating", "floating": "floating", "causal": "causal"}
"""The kind of mask that ``attend`` passes to a kernel; a boolean one for all other kinds."""


@dataclass(frozen=True, eq=False, repr=False)
class ScoringSubject(Subject):
    """A scoring function, with its options."""

    size_count: ClassVar[int] = 2

    spec: ScoringSpec | KernelSpec

    @property
    def maker(self) -> ScoringSpec:
        """The scoring function."""
        assert isinstance(self.spec, ScoringSpec)  # a kernel has a class of its own
        return self.spec

    @property
    def scoring(self) -> ScoringSpec:
        """The scoring function."""
        return self.maker

    @property
    def laws(self) -> tuple[str, ...]:
        """The declared laws, and ``pools_values``, which ``attend`` obeys."""
        return tuple(dict.fromkeys((*self.maker.laws, "pools_values")))

    @property
    def accepts(self) -> tuple[str, ...]:
        """The keyword arguments that ``attend`` takes for it."""
        return ("is_causal", "valid_lens", "enable_gqa", "dropout_p", "return_weights")

    @property
    def kernel(self) -> str | KernelSpec:
        """What ``attend`` runs."""
        return "plain"

    def output(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output ``(..., L, Ev)`` of a module from :meth:`build`."""
        output = _attended(module, inputs, self.kernel)
        return held(output, self.name, inputs, inputs.value.shape[-1])

    def output_and_weights(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """The output ``(..., L, Ev)`` and weights ``(..., L, S)``."""
        output, weights = _attended(module, inputs, self.kernel, return_weights=True)
        return output, weights

    def scores(self, module: nn.Module, inputs: Inputs) -> Tensor | None:
        """The scores ``(..., L, S)`` before mask and softmax."""
        return scores_of(module, inputs.query, inputs.key)


@dataclass(frozen=True, eq=False, repr=False)
class KernelSubject(ScoringSubject):
    """A kernel, with the options of its scoring function.

    Args:
        computes: the scoring function that it computes.
    """

    spec: KernelSpec
    computes: ScoringSpec

    @property
    def maker(self) -> ScoringSpec:
        """The scoring function, which makes the module."""
        return self.computes

    @property
    def accepts(self) -> tuple[str, ...]:
        """The keyword arguments that ``attend`` takes for it."""
        return ("is_causal", "valid_lens", "enable_gqa")

    @property
    def kernel(self) -> str | KernelSpec:
        """What ``attend`` runs."""
        return self.spec

    def unsupported(self, case: Case) -> str | None:
        """The reason why it does not support a case, as ``attend`` passes that on, or ``None``."""
        if self.spec.supports is None:
            return None
        return self.spec.supports(case.replace(mask=_FOLDED.get(case.mask, "boolean")))


def _attended(
    module: nn.Module, inputs: Inputs, kernel: str | KernelSpec, *, return_weights: bool = False
) -> Any:
    return attend(
        module,
        inputs.query,
        inputs.key,
        inputs.value,
        attn_mask=inputs.attn_mask,
        valid_lens=inputs.valid_lens,
        is_causal=inputs.is_causal,
        dropout_p=inputs.dropout_p,
        enable_gqa=inputs.enable_gqa,
        kernel=kernel,
        return_weights=return_weights,  # type: ignore[call-overload]  # either of its forms
    )
