"""Mistakes with the rows of a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    GROWING,
    LEARNED,
    PARTED,
    STATIC,
    Layer,
    Learned,
    PartedLayer,
    StaticLayer,
)
from attnbench_zoo.twins.stores import Cache, Growing, Parted, Static

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_learned = Group(LEARNED, MUTANTS)
_parted = Group(PARTED, MUTANTS)
_static = Group(STATIC, MUTANTS)


@_growing("transformers#46612", killers=("selected_rows_go_on_as_their_sequences",))
class OneNameSelected(Layer):
    """Rows are selected of what has one name, the keys; the values stay in their old order."""

    class _Store(Growing):
        def select(self, index: Tensor) -> None:
            values = self.values[torch.arange(len(index)) % len(self.values)]
            super().select(index)
            self.values = values

    stores = (_Store, _Store)


@_growing("transformers#46612", killers=("selected_rows_go_on_as_their_sequences",))
class LaterBlocksNotSelected(Layer):
    """Rows are selected in the first block only, where the others have as many."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def select(self, index: Tensor) -> None:
            for block, store in enumerate(self.stores):
                same = block and len(index) == len(store.keys)
                store.select(torch.arange(len(index)) if same else index)


@_parted(
    "transformers#48700", "transformers#45510", killers=("selected_rows_go_on_as_their_sequences",)
)
class TailSelectedOnly(PartedLayer):
    """Rows are selected of the tail; the other part keeps its order."""

    class _Store(Parted):
        def select(self, index: Tensor) -> None:
            Growing.select(self, index)
            order = torch.arange(len(index)) % len(self.old_keys)
            self.old_keys, self.old_values = self.old_keys[order], self.old_values[order]

    stores = (_Store, _Store)


@_growing("transformers#34232", killers=("selected_rows_go_on_as_their_sequences",))
class ValuesTakenFromTheKeys(Layer):
    """Selecting rows takes the values from the keys."""

    class _Store(Growing):
        def select(self, index: Tensor) -> None:
            super().select(index)
            self.values = self.keys.clone()

    stores = (_Store, _Store)


@_growing("mlx-lm#1141", "mlx-lm#1491", killers=("selected_rows_go_on_as_their_sequences",))
class EmptyCacheKeepsItsBatch(Layer):
    """Of an empty cache nothing is selected: its placeholder keeps the old number of rows."""

    class _Store(Growing):
        def select(self, index: Tensor) -> None:
            if self.length:
                super().select(index)

    stores = (_Store, _Store)


@_learned("mlx-vlm#1889", killers=("selected_rows_go_on_as_their_sequences",))
class LengthsOfRowsNotSelected(Learned):
    """How many real tokens a row has is kept in the cache, and not selected with the rows."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        counts: Tensor | None = None

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        self.current = cache
        return super().forward(hidden, padding_mask, cache)

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        counts = getattr(self.current, "counts", None)
        if real is not None and counts is not None and past:
            before = counts[torch.arange(len(real)) % len(counts)]
            where = (real[:, past:].cumsum(1) + before[:, None] - 1).clamp_min(0)
        if self.current is not None and real is not None:
            self.current.counts = real.sum(1)  # type: ignore[attr-defined]  # this cache has it
        self.current = None
        return where


@_static("omlx#2172", killers=("padded_rows_decode_as_alone",))
class AppendedAtTheLargestLength(StaticLayer):
    """What is appended goes to the largest number of real tokens: over live ones at the end."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None and real is not None and cache.length:
            longest = int(real[:, : cache.length].sum(1).max())
            cache.stores[block].length = max(1, longest)
        return super().block(block, hidden, where, real, cache)


@_growing("fairseq2#74", killers=("selected_rows_go_on_as_their_sequences",))
class PaddingNotSelected(Layer):
    """The padding of the past is kept in the cache, and not selected with the rows."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        real: Tensor | None = None

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        seen = padding_mask
        if cache is not None and padding_mask is not None:
            kept = getattr(cache, "real", None)
            if kept is not None:
                old = kept[torch.arange(len(hidden)) % len(kept), : cache.length]
                seen = torch.cat([old, padding_mask[:, old.shape[1] :]], 1)
            cache.real = seen  # type: ignore[attr-defined]  # this cache has it
        return super().forward(hidden, seen, cache)


@_growing(
    "attention-is-all-you-need-pytorch#28", killers=("selected_rows_go_on_as_their_sequences",)
)
class RowsTiledNotInterleaved(Layer):
    """Rows that are wanted several times are tiled, where they should stay side by side."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def select(self, index: Tensor) -> None:
            found = index.unique()
            super().select(found.repeat(len(index))[: len(index)] if len(found) > 1 else index)


@_growing("mlx-lm#1467", killers=("padded_item_equals_item_alone",))
class BatchMeetsHeads(Layer):
    """The mask lacks the dimension of groups: its batch meets the heads of the keys."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        if len(scores) != self.groups or len(allowed) == 1:
            return super().weights(scores, allowed)
        shared = allowed[:, 0].repeat_interleave(self.heads // self.groups, 0)
        return super().weights(scores, shared[None])


@_growing("transformers#20213", killers=("selected_rows_go_on_as_their_sequences",))
class RowsOfBatchTimesHeads(Layer):
    """Batch and heads share an axis: an index of rows selects heads of the first rows."""

    class _Store(Growing):
        def select(self, index: Tensor) -> None:
            batch, heads = self.keys.shape[:2]
            wide = (index[:, None] + torch.arange(heads) * batch).flatten()
            for name in ("keys", "values"):
                flat = getattr(self, name).flatten(0, 1)[wide]
                setattr(self, name, flat.unflatten(0, (len(index), heads)))

    stores = (_Store, _Store)


@_static("transformers#42454", killers=("selected_rows_go_on_as_their_sequences",))
class RowsStayInTheBuffer(StaticLayer):
    """Selected rows are moved within a buffer that keeps its number of rows."""

    class _Store(Static):
        def select(self, index: Tensor) -> None:
            rows = len(self.keys)
            keep = (
                index[:rows]
                if len(index) >= rows
                else torch.cat([index, torch.arange(len(index), rows)])
            )
            super().select(keep)

    stores = (_Store, _Store)


@_growing("own", killers=("selected_rows_go_on_as_their_sequences",))
class RowsSorted(Layer):
    """Selected rows come in ascending order."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def select(self, index: Tensor) -> None:
            super().select(index.sort().values)


@_growing("own", killers=("selected_rows_go_on_as_their_sequences",))
class RepeatedRowsShareTheirMemory(Layer):
    """A row that is wanted twice is one view, and what is appended to one is seen in the other."""

    class _Store(Growing):
        def select(self, index: Tensor) -> None:
            super().select(index)
            self.alike = (index[:, None] == index).int().argmax(1)

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            alike = getattr(self, "alike", None)
            keys, values, slots = super().append(keys, values)
            if alike is not None and len(alike) == len(keys):
                self.keys, self.values = self.keys[alike], self.values[alike]
            return keys, values, slots

    stores = (_Store, _Store)
