"""The blind part: mutants of public bugs by someone who had not read the invariants.

Its authors knew the names of the invariants, not their code. The suite is never changed for one of
these; what it does not find stands in the manual. None names an invariant that is meant to kill it.
"""

from __future__ import annotations

from attnbench_zoo.base import Mutant
from attnbench_zoo.blind import (
    caches,
    forms,
    gradients,
    heads,
    masks,
    numerics,
    packing,
    positions,
    windows,
)

__all__ = ["BLIND"]

_TOPICS = (masks, heads, windows, positions, caches, packing, numerics, gradients, forms)
BLIND: list[Mutant] = [mutant for topic in _TOPICS for mutant in topic.MUTANTS]
