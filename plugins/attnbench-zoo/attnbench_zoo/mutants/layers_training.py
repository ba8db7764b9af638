"""Mistakes of training, of what a module keeps, and of sizes and heads."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    BANDED,
    DROPPING,
    GROUPED,
    GROWING,
    RAGGED,
    Banded,
    Dropping,
    Layer,
)
from attnbench_zoo.twins.stores import WINDOW, Cache

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_dropping = Group(DROPPING, MUTANTS)
_grouped = Group(GROUPED, MUTANTS)
_ragged = Group(RAGGED, MUTANTS)


@_dropping("OLMo-core#828", "guided-diffusion#167", killers=("dropout_is_drawn_once",))
class RecomputedWithOtherDropout(Dropping):
    """The backward pass recomputes the layer without the random state of the forward pass."""

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        if cache is not None or not torch.is_grad_enabled():
            return super().forward(hidden, padding_mask, cache)
        output: Tensor = checkpoint(
            super().forward, hidden, padding_mask, use_reentrant=False, preserve_rng_state=False
        )
        return output


@_growing("DeepSpeed#8316", killers=("other_modules_change_nothing",))
class WidthOfTheLastModule(Layer):
    """The width of a head, by which scores are scaled, is kept once for all modules."""

    last: ClassVar[list[int]] = [1]

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.last[0] = self.width

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        query = query * math.sqrt(self.width / self.last[0])
        return super().attend(query, key, value, allowed, bias)


@_growing("own", killers=("changed_parameters_are_used",))
class WeightsOfTheFirstCall(Layer):
    """The first call keeps a weight, which later calls use instead of the module's."""

    def embed(self, hidden: Tensor, where: Tensor) -> Tensor:
        weight = self.outs[0].weight.detach()
        if not hasattr(self, "kept"):
            self.kept = weight.clone()
        return hidden + hidden @ (self.kept.to(weight) - weight)


@_banded("nntrainer#3989", killers=("outputs_depend_on_their_token",))
class RowsBeyondTheWindowLost(Banded):
    """The loop over the rows of a prompt ends at the window's width."""

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        done = torch.arange(output.shape[1]) < WINDOW
        return output * done[:, None].to(output)


@_banded("pytorch-image-models#2438", killers=("outputs_see_no_more_than_the_window",))
class FarthestTokenIsTheFirst(Banded):
    """Where the sequence is rolled, the far end of a window is the first token of all."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        return visible & (distance < WINDOW - 1) | (distance == own[:, None])


@_ragged("transformers#48256", killers=("right_padding_is_inert",))
class PaddingAtTheRightIsCounted(Layer):
    """Positions leave out what is padded at the left, and count what is padded at the right."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        slots = torch.arange(past, past + count)[None]
        if real is None:
            return slots
        return (slots - (real.cumsum(1) == 0).sum(1, keepdim=True)).clamp_min(0)


@_grouped("onnx#7274", killers=("heads_of_a_group_are_alike",))
class KeysTiledAndValuesRepeated(Layer):
    """Key heads are tiled where value heads are repeated."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        repeats = self.heads // key.shape[1]
        value = value.repeat_interleave(repeats, 1)
        return super().attend(query, key.repeat(1, repeats, 1, 1), value, allowed, bias)


@_growing("diffusers#13920", killers=("autocast_agrees",))
class AnglesUnderAutocast(Layer):
    """Angles are a matrix product, which autocast does in a half type: late positions coincide."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        half = self.width // 2
        wide = torch.promote_types(self.keys[0].weight.dtype, torch.float32)
        rates = 100.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = (where + 65536).to(wide)[..., None] @ rates.to(wide)[None]
        return angles[:, None].to(wide).cos(), angles[:, None].to(wide).sin()
