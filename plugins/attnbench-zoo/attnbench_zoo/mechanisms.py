"""Mechanisms of attnbench with a mistake that a law of theirs forbids, as classes."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

import attnbench
from attnbench_zoo.base import Twin

__all__ = ["MECHANISMS"]

MECHANISMS: list[tuple[type, Twin]] = []
"""Each with its right twin; a docstring is the mistake."""


def _like(name: str) -> Any:
    """The class of a built-in; what goes on from it is one of :data:`MECHANISMS`."""
    spec: Any = attnbench.get(name)
    twin = Twin(name, replace(spec, reference=None, variants=()))

    class Like(inspect.unwrap(spec.make)):  # type: ignore[misc]  # whatever makes it
        def __init_subclass__(cls) -> None:
            MECHANISMS.append((cls, twin))

    return Like


ConcatCombineAttention: Any = _like("concat_combine")
ForcedForwardAttention: Any = _like("forced_forward")
HardAttention: Any = _like("hard")
KeyValueAttention: Any = _like("key_value")
LocalMonotonicAttention: Any = _like("local_monotonic")
LocalPredictiveAttention: Any = _like("local_predictive")
StaticAttention: Any = _like("static")
StructuredSelfAttention: Any = _like("structured_self")
SelfTanhScoring: Any = _like("self_tanh")


class _WithoutLengths(torch.nn.Module):
    def forward(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any
    ) -> Any:
        options.pop("valid_lens", None)
        return super().forward(query, key, value, **options)


class RowsTooLarge(LocalPredictiveAttention):
    """The weights that are handed back are three times those that were used."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, 3 * weights) if return_weights else output


class WindowOffByOne(LocalMonotonicAttention):
    """The window reaches one key further to each side."""

    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1  # the edges that the law asks for are those before and after the call
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


class WindowSharesOut(LocalMonotonicAttention):
    """The weights of the window that are handed back are half of those that were used."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        return (output, weights / 2) if return_weights else output


class LooksTooFarBack(KeyValueAttention):
    """A query sees one token more than its window holds."""

    def forward(self, *args: Any, **options: Any) -> Any:
        self.window += 1
        try:
            return super().forward(*args, **options)
        finally:
            self.window -= 1


class PaddingLeaks(_WithoutLengths, KeyValueAttention):
    """``valid_lens`` is accepted and ignored."""


class PaddedSlotsTakePart(_WithoutLengths, ConcatCombineAttention):
    """``valid_lens`` is accepted and ignored."""


class RowsDiffer(StaticAttention):
    """The last query weighs the keys in the opposite order."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = torch.cat([weights[..., :-1, :], weights[..., -1:, :].flip(-1)], -2)
        return (output, weights) if return_weights else output


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


class SamplesEvenly(HardAttention):
    """Samples are drawn from scores of twice the size."""

    scoring: Any

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.scoring = _Sharper(self.scoring)

    def forward(self, *args: Any, **options: Any) -> Any:
        self.scoring.factor = 2.0 if self.training else 1.0
        result = super().forward(*args, **options)
        self.scoring.factor = 1.0
        return result


class WrongLogProbability(HardAttention):
    """The log-probability of a sample is stored at half its size."""

    log_prob: Any

    def forward(self, *args: Any, **options: Any) -> Any:
        result = super().forward(*args, **options)
        if self.training:
            self.log_prob = self.log_prob / 2
        return result


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


class TrainsAnotherChance(ForcedForwardAttention):
    """The weights of training are the squares of the chances of evaluation."""

    def forward(self, *args: Any, return_weights: Any = False, **options: Any) -> Any:
        output, weights = super().forward(*args, return_weights=True, **options)
        weights = weights.square() if self.training else weights
        return (output, weights) if return_weights else output


class PenaltyWithoutIdentity(StructuredSelfAttention):
    """The penalty forgets to subtract the identity from the products of the rows."""

    @staticmethod
    def penalty(weights: Any) -> Any:
        return (weights @ weights.mT).square().sum((-2, -1))


class BoundedByALittleMore(SelfTanhScoring):
    """The unit's output is scaled by 1.01."""

    def forward(self, query: Any, key: Any) -> Any:
        return 1.01 * super().forward(query, key)
