"""What a right twin is."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec

__all__ = ["Spec", "Twin"]

Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


@dataclass(frozen=True, eq=False)
class Twin:
    """A right implementation in stages, so that a mistake is a small change of its source.

    Args:
        name: of the twin.
        spec: what is checked; every invariant passes or is skipped.
    """

    name: str
    spec: Spec
