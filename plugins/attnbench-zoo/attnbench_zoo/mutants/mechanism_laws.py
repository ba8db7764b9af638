"""Mistakes in mechanisms that a law of theirs forbids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from attnbench_plugins.mechanisms.concat_combine import ConcatCombineAttention
from attnbench_plugins.mechanisms.forced_forward import ForcedForwardAttention
from attnbench_plugins.mechanisms.hard import HardAttention
from attnbench_plugins.mechanisms.key_value import KeyValueAttention
from attnbench_plugins.mechanisms.local_monotonic import LocalMonotonicAttention
from attnbench_plugins.mechanisms.local_predictive import LocalPredictiveAttention
from attnbench_plugins.mechanisms.static import StaticAttention
from attnbench_plugins.mechanisms.structured_self import StructuredSelfAttention
from attnbench_plugins.scorings.self_tanh import SelfTanhScoring

import attnbench
from attnbench_zoo.base import Group, Mutant, Twin

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []


def _group(name: str) -> Group:
    spec = attnbench.get(name)
    assert isinstance(spec, attnbench.MechanismSpec)
    return Group(Twin(name, replace(spec, reference=None, exempt={}, variants=())), MUTANTS)


_local_predictive = _group("local_predictive")
_local_monotonic = _group("local_monotonic")
_key_value = _group("key_value")
_concat_combine = _group("concat_combine")
_static = _group("static")
_hard = _group("hard")
_forced_forward = _group("forced_forward")
_structured_self = _group("structured_self")
_self_tanh = Group(Twin("self_tanh", attnbench.get("self_tanh")), MUTANTS)


class _WithoutLengths(torch.nn.Module):
    def forward(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
    ) -> Any:
        options.pop("valid_lens", None)
        return super().forward(query, key, value, **options)


@_local_predictive("own", killers=("rows_sum_to_at_most_one",))
class RowsTooLarge(LocalPredictiveAttention):
    """The weights that are handed back are three times those that were used."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, 3 * weights) if return_weights else output


@_local_monotonic("own", killers=("only_window_has_weight",))
class WindowOffByOne(LocalMonotonicAttention):
    """The window reaches one key further to each side."""

    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1  # the edges that the law asks for are those before and after the call
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


@_local_monotonic("own", killers=("window_sums_to_one",))
class WindowSharesOut(LocalMonotonicAttention):
    """The weights of the window that are handed back are half of those that were used."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, weights / 2) if return_weights else output


@_key_value("own", killers=("looks_back_at_most_its_window",))
class LooksTooFarBack(KeyValueAttention):
    """A query sees one token more than its window holds."""

    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


@_key_value("own", killers=("padding_is_inert",))
class PaddingLeaks(_WithoutLengths, KeyValueAttention):
    """``valid_lens`` is accepted and ignored."""


@_concat_combine("own", killers=("trailing_padding_equals_deleting",))
class PaddedSlotsTakePart(_WithoutLengths, ConcatCombineAttention):
    """``valid_lens`` is accepted and ignored."""


@_static("own", killers=("all_rows_are_equal",))
class RowsDiffer(StaticAttention):
    """The last query weighs the keys in the opposite order."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = torch.cat([weights[..., :-1, :], weights[..., -1:, :].flip(-1)], -2)
        return (output, weights) if return_weights else output


@_hard("own", killers=("picks_one_key",))
class PicksTwo(HardAttention):
    """The soft weights are used, where one key was to be picked."""

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *,
        return_weights: Any = False,
        **options: Any,
    ) -> Any:
        output, weights = attnbench.attend(
            self.scoring, query, key, value, attn_mask=attn_mask, return_weights=True, **options
        )
        return (output, weights) if return_weights else output


class _Sharper(torch.nn.Module):
    def __init__(self, scoring: Any) -> None:
        super().__init__()
        self.scoring, self.factor = scoring, 1.0

    def forward(self, query: Any, key: Any) -> Any:
        return self.factor * self.scoring(query, key)


@_hard("own", killers=("samples_follow_soft_weights",))
class SamplesEvenly(HardAttention):
    """Samples are drawn from scores of twice the size."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        scoring = self.scoring
        self.scoring = _Sharper(scoring)

    def forward(self, *args: Any, **options: Any) -> Any:
        self.scoring.factor = 2.0 if self.training else 1.0
        result = super().forward(*args, **options)
        self.scoring.factor = 1.0
        return result


@_hard("own", killers=("score_function_gradient_is_exact",))
class WrongLogProbability(HardAttention):
    """The log-probability of a sample is stored at half its size."""

    def forward(self, *args: Any, **options: Any) -> Any:
        result = super().forward(*args, **options)
        if self.training:
            self.log_prob = self.log_prob / 2
        return result


@_forced_forward("own", killers=("position_never_moves_back",))
class MovesBack(ForcedForwardAttention):
    """Each query picks the key of the highest score, wherever the one before it was."""

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *,
        return_weights: Any = False,
        **options: Any,
    ) -> Any:
        _, soft = attnbench.attend(
            self.scoring, query, key, value, attn_mask=attn_mask, return_weights=True, **options
        )
        weights = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)
        output = (weights @ value.to(weights)).to(query)
        return (output, weights) if return_weights else output


@_forced_forward("own", killers=("training_is_the_expectation",))
class TrainsAnotherChance(ForcedForwardAttention):
    """The weights of training are the squares of the chances of evaluation."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = weights.square() if self.training else weights
        return (output, weights) if return_weights else output


@_structured_self("own", killers=("penalty_is_zero_iff_orthonormal",))
class PenaltyWithoutIdentity(StructuredSelfAttention):
    """The penalty forgets to subtract the identity from the products of the rows."""

    @staticmethod
    def penalty(weights: Any) -> Any:
        return (weights @ weights.mT).square().sum((-2, -1))


@_self_tanh("own", reference=None, killers=("bounded_by_one",))
class BoundedByALittleMore(SelfTanhScoring):
    """The unit's output is scaled by 1.01."""

    def forward(self, query: Any, key: Any) -> Any:
        return 1.01 * super().forward(query, key)
