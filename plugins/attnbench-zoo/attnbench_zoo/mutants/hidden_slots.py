"""Rows without keys, and hidden slots whose content leaks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("pytorch#103749", "pytorch#103963", killers=("empty_rows_give_zeros",))
class EmptyRowGivesNan(Attention):
    """Softmax over -inf alone."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


@_attention("pytorch#41508", killers=("empty_rows_have_finite_gradients",))
class EmptyRowGivesNanGradients(Attention):
    """The NaN of an empty row is replaced behind softmax, so that its gradient is still NaN."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores + torch.zeros_like(scores).masked_fill(~allowed, -math.inf)


@_attention("apex#1390", "d2l-en#2423", killers=("empty_rows_give_zeros",))
class EmptyRowGivesTheMean(Attention):
    """A row without keys attends to all of them alike."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


@_attention("own", killers=("empty_rows_give_zeros",))
class EmptyRowGivesTheFirstValue(Attention):
    """A row without keys attends to the first."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        empty = ~allowed.any(-1, keepdim=True)
        first = torch.arange(allowed.shape[-1], device=allowed.device) == 0
        return super().normalise(hidden, allowed | (empty & first))


@_attention("pytorch#101967", killers=("hidden_slots_may_hold_nan",))
class PoisonLeaksFromKeyAndValue(Attention):
    """What a masked slot holds is multiplied by a weight of 0, which leaves NaN as it is."""

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        return tensor


@_attention("pytorch#101967", killers=("hidden_slots_may_hold_nan",))
class PoisonLeaksFromValue(Attention):
    """Keys of masked slots are silenced, values are not."""

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        return value


@_attention("pytorch#101967", killers=("hidden_slots_may_hold_nan",))
class PoisonLeaksFromKey(Attention):
    """Values of masked slots are silenced; keys are not, and reach the query's gradient."""

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        return key

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, scale) + 0.0 * key.sum(-1).unsqueeze(-2).sum(-1, True)


@_attention("keras#15390", killers=("hidden_keys_stay_hidden_at_extreme_scores",))
class FiniteFillLeaks(Attention):
    """Hidden scores are -10000, which is no less than real ones can be."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -1e4)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1) * allowed.any(-1, keepdim=True)
