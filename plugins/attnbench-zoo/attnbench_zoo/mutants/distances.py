"""Windows with the wrong edge, and scores that positions or padding move in the wrong way."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.distance import DISTANCE, Distance

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_distance = Group(DISTANCE, MUTANTS)


@_attention(
    "transformers#39408",
    killers=("masking_equals_deleting",),
)
class RangeOneTooShort(Attention):
    """A mask is read as a range of keys a query, and the last key of a window is left out."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(scores, self._without_last(allowed))

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden, self._without_last(allowed))

    def _without_last(self, allowed: Tensor) -> Tensor:
        rest = allowed & (allowed.flip(-1).cumsum(-1).flip(-1) > 1)
        hides = ~allowed.all(-1, keepdim=True) & rest.any(-1, keepdim=True)
        return torch.where(hides, rest, allowed)


@_distance("transformers#29623", killers=("agrees_with_scalar_reference",))
class WindowOneTooLong(Distance):
    """A window of three keys back reaches four."""

    def window(self, distance: Tensor) -> Tensor:
        return distance <= self.before + 1


@_distance("own", killers=("agrees_with_scalar_reference",))
class WindowOneTooShort(Distance):
    """A window of three keys back reaches two."""

    def window(self, distance: Tensor) -> Tensor:
        return distance < self.before


@_distance("own", killers=("agrees_with_scalar_reference",))
class WindowOnTheOtherSide(Distance):
    """The window limits what lies ahead instead of what lies behind."""

    def window(self, distance: Tensor) -> Tensor:
        return -distance <= self.before


@_distance("attention-gym#86", killers=("agrees_with_scalar_reference",))
class DistanceBiasSignFlipped(Distance):
    """The further away a key, the larger its score."""

    def penalty(self, distance: Tensor) -> Tensor:
        return -super().penalty(distance)


@_distance("own", killers=("agrees_with_scalar_reference",))
class DistanceBiasNotSymmetric(Distance):
    """Keys ahead get a bonus: the absolute value is forgotten."""

    def penalty(self, distance: Tensor) -> Tensor:
        return -0.5 * distance


@_distance("TransformerLens#1005", "transformers#22707", killers=("agrees_with_scalar_reference",))
class PositionsCountFromTheEnd(Distance):
    """Positions count from the end of the padded batch, so that padding moves them."""

    def distance(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return super().distance(q_len, kv_len, device) + (kv_len - q_len)


@_attention("TransformerLens#1005", killers=("masking_equals_deleting",))
class ScaledByPaddedLength(Attention):
    """Scores are divided by the root of the number of keys, padding included."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given) / (1 + 0.01 * key.shape[-2])
