"""The specs that plugins declare: frozen, keyword-only dataclasses, compared by identity.

Importing this package does not import torch, so that specs can be declared without it.
"""

from attnbench.cases.sizes import DTYPES, Sizes
from attnbench.specs.clue import Clue
from attnbench.specs.format import Format
from attnbench.specs.invariant import KINDS, Invariant
from attnbench.specs.kernel import KernelSpec
from attnbench.specs.layer_spec import CacheSpec, LayerSpec
from attnbench.specs.mechanism import ACCEPTS, MechanismSpec
from attnbench.specs.scoring import ScoringSpec
from attnbench.specs.style import Style

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
