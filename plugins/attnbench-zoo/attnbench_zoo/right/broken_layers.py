"""Layers with one mistake each; the right one is the twin that ``RIGHT_LAYERS`` names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import LayerSpec
from attnbench_zoo.right.layers import RIGHT_LAYERS, WINDOW, Block, Growing, Ring, Static

__all__ = ["BROKEN", "KILLERS", "with_cache", "with_make"]


def with_cache(twin: str, name: str, **changes: Any) -> LayerSpec:
    """The twin with another cache."""
    spec = RIGHT_LAYERS[twin]
    assert spec.cache is not None
    return replace(spec, name=name, cache=replace(spec.cache, **changes))


def with_make(twin: str, name: str, kind: type[Block], **options: Any) -> LayerSpec:
    """The twin with another module."""
    spec = RIGHT_LAYERS[twin]
    given = {"causal": spec.causal, "window": spec.window, **options}
    return replace(spec, name=name, make=lambda size: kind(size, **given))


class PositionsRestart(Block):
    """Positions of a call with a cache begin at zero again."""

    def rotated(self, tensor: Tensor, own: Tensor) -> Tensor:
        return super().rotated(tensor, own - own[:1])


class KeysOnly(Growing):
    """Values stay where they are when rows are selected."""

    def select(self, index: Tensor) -> None:
        values = self.values
        super().select(index)
        self.values = [None if v is None else v[: len(index)] for v in values]
        if len(index) > len(values[0] if values[0] is not None else index):
            self.values = [None if v is None else v[torch.zeros_like(index)] for v in values]


class CounterOnly(Growing):
    """A crop moves the counter, and leaves the keys and values."""

    def crop(self, length: int) -> None:
        self.length = length

    def positions(self, new: int) -> Tensor:
        kept = self.keys[0].shape[2] if self.keys[0] is not None else 0
        return torch.arange(kept + new) - (kept - self.length)


class KeepsTheBuffer(Static):
    """A copy of the cache writes to the buffers of the first one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> KeepsTheBuffer:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


class RollsEarly(Ring):
    """The ring drops a token when it is just full."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(layer, key, value)
        if self.length + key.shape[2] == WINDOW:
            blank = torch.zeros_like(keys[:, :, :2])
            self.keys[layer] = torch.cat([blank, keys[:, :, -WINDOW + 2 :]], 2)
        return keys, values


class CropsAnyway(Ring):
    """A ring that has wrapped is cropped all the same."""

    def crop(self, length: int) -> None:
        if self.length > WINDOW:
            gone = self.length - length
            self.keys = [None if k is None else k.roll(gone, 2) for k in self.keys]
            self.values = [None if v is None else v.roll(gone, 2) for v in self.values]
            self.length = length
        else:
            super().crop(length)


class RefusesTooLate(Growing):
    """A crop is refused after half of it has been done."""

    def crop(self, length: int) -> None:
        if self.length > 5:
            self.keys = [None if k is None else k.roll(1, 2) for k in self.keys]
            raise NotImplementedError("not beyond 5 slots")
        super().crop(length)


class LastCacheStays(Block):
    """A call without a cache goes on with the one of the last call."""

    last: Growing | None = None

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if cache is None and self.last is not None and self.last.length < 40:
            kept = self.last
            if kept.keys[0] is not None and kept.keys[0].shape[0] == hidden.shape[0]:
                return super().forward(hidden, padding_mask, kept)
        object.__setattr__(self, "last", cache)
        return super().forward(hidden, padding_mask, cache)


class MaskInPrefillOnly(Block):
    """The padding mask is forgotten once there is a past."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if cache is not None and cache.length:
            padding_mask = None
        return super().forward(hidden, padding_mask, cache)


class PaddingIgnored(Block):
    """The padding mask is taken and not used."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        return super().forward(hidden, None, cache)


class PolarityInverted(Block):
    """True is taken for padding."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        mask = None if padding_mask is None else ~padding_mask
        return super().forward(hidden, mask, cache)


class EmptyItemIsNan(Block):
    """An item without a real token gives NaN."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if padding_mask is None:
            return output
        return output.masked_fill(~padding_mask.any(1)[:, None, None], float("nan"))


class BatchMean(Block):
    """A norm over the batch comes first."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        return super().forward(hidden - hidden.detach()[:, :1].mean(0), padding_mask, cache)


class DividedByWidth(Block):
    """What is averaged is divided by the padded width."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        return super().forward(hidden, padding_mask, cache) / hidden.shape[1]


class PositionsFromTheSlot(Block):
    """Learned positions count slots, padded ones too."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        past = 0 if cache is None else cache.length
        slots = torch.arange(past, past + hidden.shape[1])
        kind, self.kind = self.kind, "none"
        try:
            return super().forward(hidden + self.table(slots), padding_mask, cache)
        finally:
            self.kind = kind


class NotCausalIfPadded(Block):
    """A padding mask takes the place of the causal one."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        self.causal = padding_mask is None
        return super().forward(hidden, padding_mask, cache)


class GradientOfPadding(Block):
    """The padded tokens are in the sum that a straight-through estimator takes back."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if padding_mask is None:
            return output
        total = hidden.masked_fill(padding_mask.unsqueeze(-1), 0.0).sum(1, keepdim=True)
        return output + (total - total.detach())


class GradientOfTheFuture(Block):
    """The last token is in the sum that a straight-through estimator takes back."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        last = hidden[:, -1:]
        return output + (last - last.detach()) if hidden.shape[1] > 1 else output


class MaskKeptByShape(Block):
    """The mask of the first call is kept for all of its shape."""

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(size, **options)
        self.kept: dict[tuple[int, ...], Tensor] = {}

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if padding_mask is not None:
            padding_mask = self.kept.setdefault(tuple(padding_mask.shape), padding_mask)
        return super().forward(hidden, padding_mask, cache)


class NoTokenGivesOne(Block):
    """At least one output is given, whether there is a token or not."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if not hidden.shape[1]:
            return hidden.new_zeros(hidden.shape[0], 1, hidden.shape[2])
        return super().forward(hidden, padding_mask, cache)


class CountsCalls(Block):
    """In training, every second call takes the other norm."""

    calls = 0

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if self.training:
            self.calls += 1
        scale = 1.0 + 0.5 * (self.calls % 2) * self.training
        return super().forward(hidden * scale, padding_mask, cache)


class KeysWithoutGradient(Growing):
    """Keys are detached when they are stored, and values are not."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(layer, key, value)
        self.keys[layer] = keys.detach()
        return keys, values


def _growing(kind: type[Growing]) -> Any:
    return lambda module, batch_size: kind(len(module.norms))


def _static(kind: type[Static]) -> Any:
    def new(module: Block, batch_size: int) -> Static:
        like = module.norms[0].weight
        return kind(len(module.norms), batch_size, module.groups, module.width, like)

    return new


def _selects_both_ways(cache: Growing, index: Tensor) -> Growing:
    """Changes the caller's cache and returns another, selected once more."""
    cache.select(index)
    other = Growing(len(cache.keys))
    other.__dict__.update(cache.__dict__)
    other.keys = [None if k is None else k.flip(0) for k in cache.keys]
    return other


_PAIRS = (
    (
        with_make("rotary_growing", "positions_restart", PositionsRestart, positions="rotary"),
        "calls_may_be_cut_anywhere",
    ),
    (with_cache("ring", "rolls_early", new=_growing(RollsEarly)), "calls_may_be_cut_anywhere"),
    (
        with_cache("causal_growing", "keys_only", new=_growing(KeysOnly)),
        "selected_rows_go_on_as_their_sequences",
    ),
    (
        with_cache("causal_growing", "selects_both_ways", select=_selects_both_ways),
        "selected_rows_go_on_as_their_sequences",
    ),
    (
        with_cache("causal_growing", "counter_only", new=_growing(CounterOnly)),
        "cropped_slots_are_forgotten",
    ),
    (with_cache("ring", "crops_anyway", new=_growing(CropsAnyway)), "cropped_slots_are_forgotten"),
    (
        with_cache("causal_growing", "refuses_too_late", new=_growing(RefusesTooLate)),
        "cropped_slots_are_forgotten",
    ),
    (
        with_cache("causal_static", "keeps_the_buffer", new=_static(KeepsTheBuffer)),
        "caches_are_independent",
    ),
    (
        with_make("causal_growing", "last_cache_stays", LastCacheStays),
        "calls_without_cache_leave_none",
    ),
    (
        with_cache("causal_growing", "length_of_the_last_call", length=lambda cache: 3),
        "cache_length_counts_slots",
    ),
    (
        with_make("causal_growing", "mask_in_prefill_only", MaskInPrefillOnly),
        "padded_rows_decode_as_alone",
    ),
    (
        with_cache("causal_growing", "keys_without_gradient", new=_growing(KeysWithoutGradient)),
        "cached_gradients_are_right_or_stopped",
    ),
    (with_make("encoder", "padding_ignored", PaddingIgnored), "padded_tokens_are_inert"),
    (with_make("encoder", "polarity_inverted", PolarityInverted), "padded_tokens_are_inert"),
    (with_make("encoder", "empty_item_is_nan", EmptyItemIsNan), "padded_tokens_are_inert"),
    (with_make("encoder", "batch_mean", BatchMean), "items_are_independent"),
    (with_make("encoder", "divided_by_width", DividedByWidth), "padded_item_equals_item_alone"),
    (
        with_make(
            "learned_growing", "positions_from_the_slot", PositionsFromTheSlot, positions="learned"
        ),
        "left_padding_is_inert",
    ),
    (
        with_make("causal_padded", "not_causal_if_padded", NotCausalIfPadded),
        "later_tokens_are_invisible",
    ),
    (
        with_make("encoder", "gradient_of_padding", GradientOfPadding),
        "padded_tokens_are_inert",
    ),
    (
        with_make("causal_plain", "gradient_of_the_future", GradientOfTheFuture),
        "later_tokens_are_invisible",
    ),
    (
        with_make("window_plain", "window_one_wider", Block, layers=1, window=4),
        "outputs_see_no_more_than_the_window",
    ),
    (with_make("encoder", "mask_kept_by_shape", MaskKeptByShape), "layer_calls_leave_no_trace"),
    (with_make("causal_plain", "no_token_gives_one", NoTokenGivesOne), "empty_calls_are_harmless"),
    (with_make("causal_plain", "counts_calls", CountsCalls), "dropout_is_drawn_once"),
)
BROKEN = {spec.name: spec for spec, _ in _PAIRS}
KILLERS = {spec.name: killer for spec, killer in _PAIRS}
