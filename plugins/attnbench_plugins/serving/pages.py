"""Rows of keys and values over pages of a cache, and the call that attends to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnbench_plugins.serving.documents import HUGE, Documents


class Pages:
    """Rows whose keys and values lie in pages.

    Args:
        documents: whose module attends to the rows.
        parts: query, key and value of each row, ``(L, H, E)`` each.
        size: slots of a page.
        mixed: whether pages are in another order, some of them unused.
        unwritten: factor of the large numbers that slots hold in which nothing is written.
    """

    def __init__(
        self,
        documents: Documents,
        parts: Sequence[Sequence[Tensor]],
        size: int,
        *,
        mixed: bool,
        unwritten: float = 1.0,
    ) -> None:
        self.documents, self.parts = documents, parts
        self.lengths = [len(part[1]) for part in parts]
        counts = [-(-length // size) for length in self.lengths]
        total = sum(counts) + (3 if mixed else 0)
        order = torch.arange(total)
        if mixed:
            order = torch.randperm(total, generator=documents.generator)
        self.table = torch.zeros(len(parts), max(counts) + mixed, dtype=torch.int32)
        caches = [
            documents.drawn(total * size, part.shape[-1], documents.kv_heads).sign()
            * (HUGE[documents.case.dtype] * unwritten)
            for part in parts[0][1:]
        ]
        self.caches = [cache.reshape(total, size, *cache.shape[1:]) for cache in caches]
        first = 0
        for row, (part, count) in enumerate(zip(parts, counts, strict=True)):
            pages = order[first : first + count]
            self.table[row, :count] = pages
            for cache, tokens in zip(self.caches, part[1:], strict=True):
                for place, start in enumerate(range(0, len(tokens), size)):
                    chunk = tokens[start : start + size]
                    cache[pages[place], : len(chunk)] = chunk
            first += count

    def output(self) -> Tensor:
        """The output ``(B, L, H, Ev)`` of the call over pages."""
        device = self.documents.case.device
        output: Tensor = self.documents.call(
            torch.stack([part[0] for part in self.parts]),
            *self.caches,
            torch.tensor(self.lengths, dtype=torch.int32).to(device),
            self.table.to(device),
            causal=self.documents.causal,
            **self.documents.options,
        )
        return output
