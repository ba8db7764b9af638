"""Mutants: attentions that are right but for one edit, each named after a bug that was real.

A property suite is worth what it catches. Every mutant differs from a right twin by one overridden
method or one attribute, says which bug it repeats, and names the invariants that are meant to catch
it. The twins pass everything. ``python -m tests.meta.mutants.matrix`` measures who kills whom.
"""

from __future__ import annotations

from attnbench_zoo.base import Mutant, Twin
from attnbench_zoo.mutants import (
    additive,
    backward,
    beside,
    bitwise,
    causality,
    distances,
    dropout,
    execution,
    groups,
    heads,
    hidden_slots,
    layers_masks,
    layers_modes,
    layers_paths,
    layers_positions,
    layers_rollback,
    layers_rows,
    layers_training,
    layers_windows,
    lengths,
    long,
    masks_floating,
    masks_misaligned,
    masks_misapplied,
    mechanism_laws,
    numerics,
    options,
    packing,
    positions,
    rounding,
    scale,
    scorings,
    state,
    storage,
    streaming,
)

__all__ = ["MUTANTS", "TWINS", "Mutant", "Twin"]

TOPICS = (
    masks_misapplied,
    causality,
    lengths,
    masks_misaligned,
    distances,
    hidden_slots,
    masks_floating,
    numerics,
    rounding,
    packing,
    scale,
    options,
    heads,
    groups,
    scorings,
    additive,
    mechanism_laws,
    storage,
    streaming,
    long,
    execution,
    bitwise,
    state,
    dropout,
    backward,
    positions,
    layers_positions,
    layers_masks,
    layers_windows,
    layers_rollback,
    layers_rows,
    layers_training,
    layers_modes,
    layers_paths,
    beside,
)

MUTANTS: list[Mutant] = [mutant for topic in TOPICS for mutant in topic.MUTANTS]
TWINS: list[Twin] = list(dict.fromkeys(mutant.twin for mutant in MUTANTS))
