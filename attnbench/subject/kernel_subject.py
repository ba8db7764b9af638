"""Kernels as subjects: ``attend`` runs them, on modules of their scoring functions."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.cases.case import Case
from attnbench.specs import KernelSpec, ScoringSpec
from attnbench.subject.scoring_subject import ScoringSubject

_FOLDED = {"none": "none", "bias": "floating", "floating": "floating", "causal": "causal"}
"""The kind of mask that ``attend`` passes to a kernel; a boolean one for all other kinds."""


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
