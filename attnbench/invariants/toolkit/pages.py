"""Rows of keys and values over pages of a cache, and the call that attends to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from attnbench.invariants.toolkit.documents import HUGE, Documents

_SEVERAL = (7, 5, 6)
"""Tokens of rows that take several pages of two."""


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

    def slots_read(self, got: Tensor, expected: Tensor) -> str:
        """How many slots a wrong row reads, if each of those reads too many or too few."""
        near, told = self.documents.allowed(expected), []
        for row, part in enumerate(self.parts):
            if bool(((got[row] - expected[row]).abs() <= near).all()):
                continue
            slots = [cache[self.table[row].long()].flatten(0, 1) for cache in self.caches]
            counts = (n for n in range(1, len(slots[0]) + 1) if n != self.lengths[row])
            others = (
                (n, self.documents.separate([part[0], *(slot[:n] for slot in slots)]))
                for n in counts
            )
            is_read = (n for n, other in others if bool(((got[row] - other).abs() <= near).all()))
            if (read := next(is_read, None)) is None:
                return ""
            told.append(
                f"row {row}, of {self.lengths[row]} tokens, reads {read} slots of its pages"
            )
        return told[0] if told else ""

    def read_elsewhere(self, got: Tensor, expected: Tensor) -> str:
        """The cause of rows that are read from other slots than the table says, if that gives all
        wrong ones; else ``""``.
        """
        near, size = self.documents.allowed(expected), self.caches[0].shape[1]
        memory = [cache.flatten(0, 1) for cache in self.caches]

        def is_from(row: int, slots: Tensor) -> bool:
            tokens = (held[slots] for held in memory)
            other = self.documents.separate([self.parts[row][0], *tokens])
            return bool(((got[row] - other).abs() <= near).all())

        def run(row: int, start: int) -> Tensor:
            return torch.arange(start, min(start + self.lengths[row], len(memory[0])))

        def paged(row: int, table: Tensor) -> Tensor:
            slots = table[:, None] * size + torch.arange(size)
            return slots.flatten()[: self.lengths[row]]

        tables, starts = [*self.table.long()], range(len(memory[0]))
        firsts = [int(table[0]) * size for table in tables]
        ways: dict[str, Callable[[int], Iterable[Tensor]]] = {
            "pages_after_the_first": lambda row: [run(row, firsts[row])],
            "pages_in_memory": lambda row: (run(row, start) for start in starts),
            "pages_of_another": lambda row: (paged(row, table) for table in tables),
        }
        wrong = [
            n for n in range(len(got)) if not bool(((got[n] - expected[n]).abs() <= near).all())
        ]
        for cause, slots in ways.items():
            if wrong and all(any(is_from(row, found) for found in slots(row)) for row in wrong):
                return cause
        return ""


def _told_apart(
    documents: Documents, parts: Sequence[Sequence[Tensor]], size: int, *, mixed: bool
) -> Pages:
    """Rows none of whose slots holds a number so large that it alone decides the output."""
    return Pages(documents, parts, size, mixed=mixed, unwritten=1 / HUGE[documents.case.dtype])


def miscounted(
    documents: Documents,
    parts: Sequence[Sequence[Tensor]],
    expected: Tensor,
    size: int,
    *,
    mixed: bool,
) -> str:
    """What :meth:`Pages.slots_read` tells of these rows in pages of a size."""
    rows = _told_apart(documents, parts, size, mixed=mixed)
    return rows.slots_read(rows.output(), expected)


def misread(documents: Documents, new: int) -> str:
    """The cause of rows of several pages that are not read by the table; ``""`` if none is seen."""
    parts = [documents.part(min(new, *_SEVERAL), length) for length in _SEVERAL]
    expected = torch.stack([documents.separate(part) for part in parts])
    rows = _told_apart(documents, parts, 2, mixed=True)
    try:
        return rows.read_elsewhere(rows.output(), expected)
    except Exception:  # it refuses this call: what was found before is told
        return ""
