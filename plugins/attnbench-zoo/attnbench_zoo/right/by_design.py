"""Right layers that differ from a twin in what is nobody's bug: none of them is accused.

Each is a row of the list of what issues call bugs and maintainers call design. What differs only
between models (cross-attention, causal flags beside masks) has no layer here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec
from attnbench_zoo.base import Spec
from attnbench_zoo.right.layers import (
    BANDED,
    GROWING,
    LEARNED,
    PARTED,
    RINGED,
    SLOPED,
    STATIC,
    UNCACHED,
    WINDOW,
    Banded,
    Cache,
    Layer,
    Learned,
    Parted,
    PartedLayer,
    Sloped,
    Static,
    StaticLayer,
)

__all__ = ["BY_DESIGN"]

BY_DESIGN: list[Spec] = [
    replace(STATIC.spec, name="static_cache_gives_its_whole_buffer"),
    replace(RINGED.spec, name="ring_refuses_to_crop_what_has_wrapped"),
]


def _design(spec: Any, **changes: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(cls: type[nn.Module]) -> type[nn.Module]:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")
        BY_DESIGN.append(replace(spec, name=name, make=cls, **changes))
        return cls

    return add


@_design(GROWING.spec)
class PaddedOutputsAreArbitrary(Layer):
    """Outputs at padded slots are some finite number (xformers#782)."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if padding_mask is None:
            return output
        real = padding_mask[:, padding_mask.shape[1] - hidden.shape[1] :, None]
        return output.masked_fill(~real, 7.0)


@_design(LEARNED.spec, laws=())
class LearnedPositionsCountPadding(Learned):
    """Left padding shifts learned positions, for the caller to pass others (nnsight#672)."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, None)


@_design(GROWING.spec)
class RotaryPositionsCountPadding(Layer):
    """Left padding shifts rotary positions, which moves nothing (trl#6800)."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, None)


@_design(GROWING.spec)
class StepsRoundElsewhere(Layer):
    """A step sums in another order, and differs in the last bits (transformers#25420)."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        if query.shape[2] > 1:
            return super().attend(query, key, value, allowed, bias)
        return super().attend(query, key.flip(2), value.flip(2), allowed.flip(-1), bias)


@_design(BANDED.spec, window=2 * WINDOW + 1)
class WindowOfOneMore(Banded):
    """A window of W sees W + 1 tokens, and says so (vllm#3385, mlx-lm#390)."""

    windows = (WINDOW + 1, WINDOW + 1)


@_design(SLOPED.spec)
class SlopesOffByAConstant(Sloped):
    """The bias is one row for all queries, off by a constant for each (llm-foundry#186)."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        slopes = 2.0 ** -torch.arange(1, self.heads + 1)
        return (slots * slopes[:, None])[:, None]


@_design(GROWING.spec)
class QueriesWithoutKeysGiveTheMean(Layer):
    """A query that sees nothing, a padded one, gets the mean (flash-attention#1778)."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~allowed, low).softmax(-1)


@_design(BANDED.spec, dtypes=("float32", "bfloat16"))
class FinitesAreInfiniteInFloat64(Banded):
    """The softmax is in float32, where float64's lowest number is -inf (transformers, eager)."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        low = torch.finfo(scores.dtype).min
        return scores.masked_fill(~allowed, low).float().softmax(-1).to(scores.dtype)


@_design(STATIC.spec)
class BuffersStopGradients(StaticLayer):
    """What is written into a buffer has no graph (transformers#43897)."""

    class _Store(Static):
        def write(self, buffer: Tensor, new: Tensor, first: int) -> Tensor:
            with torch.no_grad():
                return super().write(buffer, new.detach(), first)

    stores = (_Store, _Store)


@_design(STATIC.spec)
class BuffersAreWrittenInPlace(StaticLayer):
    """What autograd kept of a buffer is overwritten, so that it raises in the backward pass."""

    class _Store(Static):
        def write(self, buffer: Tensor, new: Tensor, first: int) -> Tensor:
            buffer = buffer.to(new.dtype)
            buffer[:, :, first : first + new.shape[2]] = new
            return buffer

    stores = (_Store, _Store)


_NTK = "its angles depend on the length of the call (transformers#25104)"
_LOSSY = "what is kept is rounded (transformers#35185)"
_COMPARED = ("calls_may_be_cut_anywhere", "cropped_slots_are_forgotten")


@_design(GROWING.spec, exempt=dict.fromkeys(_COMPARED, _NTK))
class BaseFollowsTheLength(Layer):
    """The base of the angles grows with the length of the sequence, beyond eight tokens."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        longest = where.amax(-1, keepdim=True).clamp_min(8) if where.numel() else where
        return super().table(where * 8.0 / longest, length)


@_design(UNCACHED.spec, accepts=())
class TemperatureFollowsTheLength(Learned):
    """Scores are multiplied by a logarithm of the number of tokens, and no cache shows it."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        longer = math.log(2 + key.shape[2])
        return super().attend(query * longer, key, value, allowed, bias)


@_design(PARTED.spec, exempt=dict.fromkeys(_COMPARED, _LOSSY))
class OldTokensAreRounded(PartedLayer):
    """All but the tail of the cache is kept in sixteenths, and differs from what is exact."""

    class _Store(Parted):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            given = super().append(keys, values)
            self.old_keys = self.old_keys.mul(16).round().div(16)
            self.old_values = self.old_values.mul(16).round().div(16)
            return given

    stores = (_Store, _Store)


def _remove(cache: Cache, count: int) -> None:
    """Remove tokens; of 0 a crop does nothing (transformers#47977)."""
    if count:
        cache.crop(cache.length - count)


_spec = GROWING.spec.cache
assert _spec is not None
BY_DESIGN.append(
    replace(
        GROWING.spec,
        name="crop_counts_tokens_to_remove",
        cache=CacheSpec(
            new=_spec.new,
            select=_spec.select,
            crop=lambda cache, length: _remove(cache, cache.length - length),
            length=_spec.length,
        ),
    )
)
