"""One call of textbook attention, and what it would give if one of its stages were another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from attnbench.oracle.textbook import Stages, stages_of
from attnbench.subject.tensors import Inputs

__all__ = ["Call", "Named", "Topic"]

Named = Iterator[tuple[str, Tensor]]
"""Names of mistakes, and the outputs that they give."""


@dataclass(frozen=True)
class Call:
    """One call, and what attention computes on the way to its output.

    Args:
        inputs: of the call.
        stages: as they should be.
        scaled: whether the scores are q·k times a scale, so that those of other inputs are known.
    """

    inputs: Inputs
    stages: Stages
    scaled: bool

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S."""
        q_len, kv_len = self.stages.scores.shape[-2:]
        return q_len, kv_len

    def silenced(self, seen: Tensor) -> Call:
        """The same call with zeros in key and value where no query may see."""
        scores = self.stages.scores.masked_fill(~seen.mT, 0.0) if self.scaled else None
        value = self.stages.value.masked_fill(~seen, 0.0)
        scores = self.stages.scores if scores is None else scores
        return replace(self, stages=self.stages.replace(scores=scores, value=value))

    def masked(self, **changes: Any) -> Tensor:
        """What the same scores give where masks, lengths or causality are others."""
        other = stages_of(self.inputs.replace(**changes))
        return self.stages.replace(allowed=other.allowed, bias=other.bias).output

    def left(self, allowed: Tensor) -> Tensor:
        """What the same scores give where each query may attend to other keys."""
        return self.stages.replace(allowed=allowed.expand(self.stages.allowed.shape)).output

    def scored(self, scores: Tensor) -> Tensor:
        """What other scores give under the same masks."""
        return self.stages.replace(scores=scores).output

    def pooled(self, weights: Tensor) -> Tensor:
        """What other weights give."""
        return weights @ self.stages.finite_value


Topic = Callable[[Call], Named]
"""What the mistakes of one topic would make of a call; one that it could not show is left out."""
