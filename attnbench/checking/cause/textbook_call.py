"""One call of textbook attention, and its output if one of its stages is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from attnbench.oracle.textbook import Stages, stages_of
from attnbench.subject.tensors import Inputs

Named = Iterator[tuple[str, Tensor]]
"""Names of mistakes and their outputs."""


@dataclass(frozen=True)
class Call:
    """One call, with the stages of attention.

    Args:
        inputs: inputs of the call.
        stages: the correct stages.
        scaled: whether the scores are q·k times a scale, so that scores of other inputs are known.
        empty_rows: whether rows without keys must be zeros; if not, they are not compared.
    """

    inputs: Inputs
    stages: Stages
    scaled: bool
    empty_rows: bool = True

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S."""
        q_len, kv_len = self.stages.scores.shape[-2:]
        return q_len, kv_len

    def compared(self, output: Tensor) -> Tensor:
        """An output with zeros in the rows that are not compared."""
        seen = self.stages.allowed.any(-1, keepdim=True)
        return output if self.empty_rows else output.masked_fill(~seen, 0.0)

    def silence(self, visible: Tensor) -> Call:
        """The same call with zeros in keys and values that no query may see."""
        scores = self.stages.scores.masked_fill(~visible.mT, 0.0) if self.scaled else None
        value = self.stages.value.masked_fill(~visible, 0.0)
        scores = self.stages.scores if scores is None else scores
        return replace(self, stages=self.stages.replace(scores=scores, value=value))

    def mask_by(self, **changes: Any) -> Tensor:
        """The output of the same scores with other masks, lengths or causality."""
        stages = stages_of(self.inputs.replace(**changes))
        return self.stages.replace(allowed=stages.allowed, bias=stages.bias).output

    def allow(self, allowed: Tensor) -> Tensor:
        """The output of the same scores with other allowed keys."""
        return self.stages.replace(allowed=allowed.expand(self.stages.allowed.shape)).output

    def score(self, scores: Tensor) -> Tensor:
        """The output of other scores with the same masks."""
        return self.stages.replace(scores=scores).output

    def pool(self, weights: Tensor) -> Tensor:
        """The output of other weights."""
        return weights @ self.stages.finite_value


Topic = Callable[[Call], Named]
"""The outputs of a call with the mistakes of one topic; those it cannot show are left out."""
