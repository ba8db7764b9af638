"""What right layers keep of the tokens that they have seen: a store a block, of each kind."""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW, CAPACITY, TAIL = 4, 24, 2


class Growing:
    """Keys and values of all tokens.

    Args:
        empty: ``(B, H, 0, D)``.
    """

    def __init__(self, empty: Tensor) -> None:
        self.keys, self.values, self.length = empty, empty, 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keep ``(B, H, L, D)`` more: the keys and values to attend to, and the slots of each."""
        self.keys = torch.cat([self.keys.to(keys.dtype), keys], 2)
        self.values = torch.cat([self.values.to(values.dtype), values], 2)
        self.length += keys.shape[2]
        return self.keys, self.values, torch.arange(self.length)

    def select(self, index: Tensor) -> None:
        """Keep these rows."""
        self.keys, self.values = self.keys[index], self.values[index]

    def check(self, length: int) -> None:
        """Refuse to crop to a length, before any block is changed."""

    def crop(self, length: int) -> None:
        """Keep the first slots."""
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        self.length = length


class Static(Growing):
    """A buffer of fixed capacity, all of which is given: its empty slots come after any query."""

    def __init__(self, empty: Tensor) -> None:
        super().__init__(empty)
        self.keys = empty.new_zeros(*empty.shape[:2], CAPACITY, empty.shape[-1])
        self.values = self.keys.clone()

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write into the next slots."""
        first, self.length = self.length, self.length + keys.shape[2]
        self.keys = self.write(self.keys, keys, first)
        self.values = self.write(self.values, values, first)
        return self.keys, self.values, torch.arange(CAPACITY)

    def write(self, buffer: Tensor, new: Tensor, first: int) -> Tensor:
        """The buffer with new slots; another one where a gradient is recorded."""
        buffer = buffer.to(new.dtype)
        buffer = buffer.clone() if torch.is_grad_enabled() else buffer
        buffer[:, :, first : first + new.shape[2]] = new
        return buffer

    def crop(self, length: int) -> None:
        """Forget; the slots beyond are hidden until they are written again."""
        self.length = length


class Ring(Growing):
    """The latest tokens: token ``i`` lies at ``i`` modulo the window."""

    def __init__(self, empty: Tensor) -> None:
        super().__init__(empty)
        self.keys = empty.new_zeros(*empty.shape[:2], WINDOW, empty.shape[-1])
        self.values = self.keys.clone()
        self.first = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give what is held and what is new, then write the latest over the oldest."""
        held = torch.arange(self.first, self.length)
        new = torch.arange(self.length, self.length + keys.shape[2])
        given = [
            torch.cat([ring.to(more.dtype)[:, :, self.cells(held)], more], 2)
            for ring, more in ((self.keys, keys), (self.values, values))
        ]
        self.length += keys.shape[2]
        self.first = self.evict()
        last = new[new >= self.first]
        self.keys = self.write(self.keys, keys[:, :, keys.shape[2] - len(last) :], last)
        self.values = self.write(self.values, values[:, :, values.shape[2] - len(last) :], last)
        return given[0], given[1], torch.cat([held, new])

    def evict(self) -> int:
        """The oldest slot that is held now."""
        return max(self.first, self.length - WINDOW)

    def cells(self, slots: Tensor) -> Tensor:
        """Where in the ring slots lie."""
        return slots % WINDOW

    def write(self, ring: Tensor, new: Tensor, slots: Tensor) -> Tensor:
        """The ring with new slots."""
        ring = ring.to(new.dtype).clone()
        ring[:, :, self.cells(slots)] = new
        return ring

    def check(self, length: int) -> None:
        """Refuse if the window that ends there is not held any more."""
        if self.first > max(0, length + 1 - WINDOW):
            raise NotImplementedError(f"slots before {self.first} are gone")

    def crop(self, length: int) -> None:
        """Keep the first slots."""
        self.length = length


class Parted(Growing):
    """All but the latest tokens in a store of their own, as a quantised cache has them."""

    def __init__(self, empty: Tensor) -> None:
        super().__init__(empty)
        self.old_keys, self.old_values = empty, empty

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Move what is beyond the tail to the other store, and give both."""
        super().append(keys, values)
        split = max(0, self.keys.shape[2] - TAIL)
        self.old_keys = torch.cat([self.old_keys.to(keys.dtype), self.keys[:, :, :split]], 2)
        self.old_values = torch.cat([self.old_values.to(keys.dtype), self.values[:, :, :split]], 2)
        self.keys, self.values = self.keys[:, :, split:], self.values[:, :, split:]
        all_keys = torch.cat([self.old_keys, self.keys], 2)
        all_values = torch.cat([self.old_values, self.values], 2)
        return all_keys, all_values, torch.arange(self.length)

    def select(self, index: Tensor) -> None:
        """Keep these rows of both."""
        super().select(index)
        self.old_keys, self.old_values = self.old_keys[index], self.old_values[index]

    def crop(self, length: int) -> None:
        """Keep the first slots of both."""
        old = self.old_keys.shape[2]
        super().crop(max(0, length - old))
        self.old_keys = self.old_keys[:, :, :length]
        self.old_values = self.old_values[:, :, :length]
        self.length = length


class Cache:
    """What a model keeps: a store a block, and how many slots were appended.

    Args:
        stores: one a block.
    """

    def __init__(self, stores: list[Growing]) -> None:
        self.stores, self.length = stores, 0

    def advance(self, count: int) -> None:
        """Count slots, once all blocks have them."""
        self.length += count

    def select(self, index: Tensor) -> None:
        """Keep these rows in each block."""
        for store in self.stores:
            store.select(index)

    def crop(self, length: int) -> None:
        """Keep the first slots in each block, or in none."""
        for store in self.stores:
            store.check(length)
        for store in self.stores:
            store.crop(length)
        self.length = length
