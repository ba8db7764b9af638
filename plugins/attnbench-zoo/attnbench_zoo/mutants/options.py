"""Windows, soft caps, sinks, slopes and scales that do not mean what the textbook says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import Attention
from attnbench_zoo.twins.options import OPTIONS, Options

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_options = Group(OPTIONS, MUTANTS)

_WINDOW = ("window_leaves_the_keys_around",)
_CAP = ("softcap_bounds_scores",)
_SINKS = ("sinks_take_weight_alone",)
_SLOPES = ("alibi_slopes_lower_scores_by_distance",)
_SCALE = ("scale_multiplies_scores",)


@_options("own", killers=_WINDOW)
class WindowReachesOneFurther(Options):
    """A window of b keys before a query's own leaves b + 1."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        return super().window(steps, before + (before >= 0), after)


@_options("own", killers=_WINDOW)
class WindowFromTheTopLeft(Options):
    """The window is aligned to the top left where there are more keys than queries."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        q_len, kv_len = steps.shape
        return super().window(steps + (kv_len - q_len), before, after)


@_options("own", killers=_WINDOW)
class WindowLostBesideCausality(Options):
    """Where causality is asked for, the window is not looked at."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        kept = super().window(steps, before, after)
        return torch.ones_like(kept) if self.given[-1] else kept


@_options("own", killers=_WINDOW)
class NoLimitTakenForOne(Options):
    """A window of -1 ahead, which is no limit, is taken for a number."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        return super().window(steps, before, after) & (steps <= after)


@_options("own", killers=_WINDOW)
class WindowLostBesideManyKeys(Options):
    """Beyond two blocks of keys another path is taken, which knows no window."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        kept = super().window(steps, before, after)
        return torch.ones_like(kept) if steps.shape[-1] > 2 * BLOCK else kept


@_options("own", killers=_CAP)
class CappedScoresStaySmall(Options):
    """tanh(s / c) for c·tanh(s / c)."""

    def cap(self, scores: Tensor, cap: float) -> Tensor:
        return (scores / cap).tanh()


@_options("own", killers=_CAP)
class CappedBeforeTheScale(Options):
    """The soft cap is laid on the raw product, which is scaled after."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        cap = self.given[1]
        if cap is None:
            return super().scores(query, key, scale)
        return self.cap(Attention.scores(self, query, key, 1.0), cap) * scale


@_options("own", killers=_CAP)
class CapLaidOnTheBias(Options):
    """The soft cap is laid on scores and floating mask together."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        cap = self.given[1]
        return super().hide(scores if cap is None else super().cap(scores, cap), allowed)

    def cap(self, scores: Tensor, cap: float) -> Tensor:
        return scores


@_options("own", killers=_CAP)
class CapWithoutItsSlope(Options):
    """The backward pass takes the soft cap for the identity."""

    def cap(self, scores: Tensor, cap: float) -> Tensor:
        return scores + (super().cap(scores, cap) - scores).detach()


@_options("own", killers=_SINKS)
class SinksScaledLikeScores(Options):
    """The scale is applied to the sink too."""

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        return super().sink(sinks, hidden) / 2


@_options("own", killers=_SINKS)
class SinksTakenForWeights(Options):
    """What a sink holds is added to the sum as it is, without the exponential."""

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        return super().sink(sinks, hidden).abs().clamp_min(1e-6).log()


@_options("own", killers=_SINKS)
class SinksOfTheKeysHeads(Options):
    """With grouped heads a group has the sink of its first head."""

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        groups = self.given[4]
        return super().sink(sinks[::groups].repeat_interleave(groups), hidden)


@_options("own", killers=_SINKS)
class SinksDetached(Options):
    """No gradient reaches the sinks, which are parameters."""

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        return super().sink(sinks.detach(), hidden)


@_options("own", killers=_SINKS)
class SinksLostInTraining(Options):
    """The path with dropout has no sink."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if self.training:
            return Attention.normalise(self, hidden, allowed)
        return super().normalise(hidden, allowed)


@_options("own", killers=_SLOPES)
class SlopesWithoutTheirSign(Options):
    """Keys ahead are favoured: the absolute value of the distance is forgotten."""

    def slopes(self, steps: Tensor, slopes: Tensor) -> Tensor:
        return slopes[:, None, None] * steps


@_options("own", killers=_SLOPES)
class SlopesFromTheTopLeft(Options):
    """Distances count as if the first query stood beside the first key."""

    def slopes(self, steps: Tensor, slopes: Tensor) -> Tensor:
        q_len, kv_len = steps.shape
        return super().slopes(steps + (kv_len - q_len), slopes)


@_options("own", killers=_SLOPES)
class SlopesOfTheKeysHeads(Options):
    """With grouped heads a group has the slope of its first head."""

    def slopes(self, steps: Tensor, slopes: Tensor) -> Tensor:
        groups = self.given[4]
        return super().slopes(steps, slopes[::groups].repeat_interleave(groups))


@_options("own", killers=_SCALE)
class ScaleWithoutItsSign(Options):
    """Of a negative scale the absolute value is taken."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return abs(super().scale(query, key, given))


@_options("own", killers=_SCALE)
class NegativeScaleIsNone(Options):
    """Only a scale above zero is used, any other is taken for none."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        known: Any = given if given is None or given >= 0 else None
        return super().scale(query, key, known)
