"""The specs that plugins declare: frozen, keyword-only dataclasses, compared by identity.

Importing this package does not import torch, so that specs can be declared without it.
"""

from attnbench.cases.sizes import DTYPES, Sizes
from attnbench.specs.extensions import Clue, Format, Style
from attnbench.specs.invariant import KINDS, Invariant
from attnbench.specs.layer_spec import CacheSpec, LayerSpec
from attnbench.specs.mechanism import ACCEPTS, MechanismSpec
from attnbench.specs.scoring import KernelSpec, ScoringSpec

__all__ = [
    "ACCEPTS",
    "DTYPES",
    "KINDS",
    "CacheSpec",
    "Clue",
    "Format",
    "Invariant",
    "KernelSpec",
    "LayerSpec",
    "MechanismSpec",
    "ScoringSpec",
    "Sizes",
    "Style",
]
