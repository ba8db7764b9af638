"""Blocks of queries, so that the scores of all pairs are never in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Block", "blocks"]


@dataclass(frozen=True)
class Block:
    """Some queries of some items, and the keys that they may see under causality."""

    items: slice
    rows: slice
    keys: slice

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of items, of queries and of keys."""
        return (
            self.items.stop - self.items.start,
            self.rows.stop - self.rows.start,
            self.keys.stop - self.keys.start,
        )

    def queries_of(self, tensor: Tensor) -> Tensor:
        """The block's part of ``(N, L, ...)``."""
        return tensor[self.items, self.rows]

    def keys_of(self, tensor: Tensor) -> Tensor:
        """The block's part of ``(N, S, ...)``."""
        return tensor[self.items, self.keys]

    def pairs_of(self, tensor: Tensor) -> Tensor:
        """The block's part of a tensor that broadcasts to ``(N, L, S)``."""
        whole = slice(None)
        wanted = zip(tensor.shape, (self.items, self.rows, self.keys), strict=True)
        return tensor[tuple(whole if size == 1 else part for size, part in wanted)]


def blocks(items: int, rows: int, keys: int, causal: bool, pairs: int) -> Iterator[Block]:
    """Split all queries of all items into blocks of about ``pairs`` query-key pairs."""
    height = min(rows, max(8, pairs // keys))
    width = max(1, pairs // (rows * keys)) if height == rows else 1
    for n in range(0, items, width):
        for i in range(0, rows, height):
            end = min(i + height, rows)
            last = keys - rows + end if causal else keys
            yield Block(slice(n, min(n + width, items)), slice(i, end), slice(0, last))
