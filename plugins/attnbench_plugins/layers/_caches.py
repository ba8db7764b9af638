"""Caches of keys and values of earlier tokens, in three kinds of storage.

Each returns the keys to attend to in the order of their slots, and the slot of the first one.
Writes are out of place while autograd records, so that gradients reach the cached tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench import CacheSpec


class GrowingCache:
    """A cache of all tokens, in tensors that grow.

    Args:
        keys, values: ``(B, H, 0, E)``, empty, with the other sizes of the tokens to come.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.length = keys, values, 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, int]:
        """Append ``(B, H, L, E)``; returns all keys and values, and the first one's slot."""
        self.keys = torch.cat([self.keys.to(keys.dtype), keys], -2)
        self.values = torch.cat([self.values.to(values.dtype), values], -2)
        self.length += keys.shape[-2]
        return self.keys, self.values, 0

    def select(self, index: Tensor) -> None:
        """Keep the batch rows that an index selects, in its order."""
        self.keys, self.values = self.keys[index], self.values[index]

    def crop(self, length: int) -> None:
        """Keep the first ``length`` slots."""
        self.keys, self.values = self.keys[..., :length, :], self.values[..., :length, :]
        self.length = length


class StaticCache(GrowingCache):
    """A cache of all tokens, in buffers of fixed size.

    Args:
        keys, values: ``(B, H, capacity, E)``.
    """

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, int]:
        """Append ``(B, H, L, E)``; returns the filled part of the buffers, and 0."""
        first, self.length = self.length, self.length + keys.shape[-2]
        if self.length > self.keys.shape[-2]:
            raise IndexError(f"{self.length} tokens, but the cache holds {self.keys.shape[-2]}.")
        self.keys = _write(self.keys, keys, slice(first, self.length))
        self.values = _write(self.values, values, slice(first, self.length))
        return self.keys[..., : self.length, :], self.values[..., : self.length, :], 0

    def crop(self, length: int) -> None:
        """Keep the first ``length`` slots; later ones are overwritten."""
        self.length = length


class RotatingCache(GrowingCache):
    """A cache of the latest tokens only; token ``i`` is stored at ``i`` modulo the window.

    Args:
        keys, values: ``(B, H, window, E)``.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values)
        self.first = 0  # the oldest stored token

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, int]:
        """Append ``(B, H, L, E)``; returns stored and new keys and values, and the first's slot."""
        window, old, first = self.keys.shape[-2], self.length, self.first
        self.length = old + keys.shape[-2]
        self.first = max(first, self.length - window)
        held = torch.arange(first, old, device=keys.device) % window
        slots = torch.arange(max(old, self.first), self.length, device=keys.device)
        given = []
        for name, new in (("keys", keys), ("values", values)):
            ring = getattr(self, name).to(new.dtype)
            given.append(torch.cat([ring[..., held, :], new], -2))
            setattr(self, name, _write(ring, new[..., slots - old, :], slots % window))
        return given[0], given[1], first

    def crop(self, length: int) -> None:
        """Keep the first ``length`` slots.

        Raises:
            NotImplementedError: a token that the next one sees has been overwritten.
        """
        if self.first > max(0, length + 1 - self.keys.shape[-2]):
            raise NotImplementedError(
                f"slots before {self.first} are evicted, so a window that ends at {length} is gone"
            )
        self.length = length


def _write(buffer: Tensor, new: Tensor, slots: Any) -> Tensor:
    """Write ``new`` to some slots of a buffer ``(B, H, S, E)``; returns a copy under autograd."""
    buffer = buffer.to(new.dtype)
    buffer = buffer.clone() if torch.is_grad_enabled() else buffer
    buffer[..., slots, :] = new
    return buffer


def cached(kind: type[GrowingCache], slots: int = 0) -> CacheSpec:
    """A cache in a buffer of ``slots``, which are the capacity of a static, not a rotating one."""
    return CacheSpec(
        new=lambda module, batch_size: kind(*module.empty_slots(batch_size, slots)),
        select=lambda cache, index: cache.select(index),
        crop=lambda cache, length: cache.crop(length),
        length=lambda cache: cache.length,
        capacity=slots if kind is StaticCache else None,
    )
