"""Right layers, as section 5 of the design describes them: none is accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec

__all__ = ["RIGHT_LAYERS", "Block", "Growing", "Ring", "Static"]

WINDOW = 4
CAPACITY = 48


class Growing:
    """Keys and values of all tokens, concatenated."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values ``(B, H, length + L, D)``, the new ones last."""
        old_key, old_value = self.keys[layer], self.values[layer]
        if old_key is not None and old_value is not None:
            key, value = torch.cat([old_key, key], 2), torch.cat([old_value, value], 2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def positions(self, new: int) -> Tensor:
        """Positions of the keys that ``append`` gives, when ``new`` ones came."""
        return torch.arange(self.length + new)

    def select(self, index: Tensor) -> None:
        """Keep rows, in place."""
        self.keys = [None if k is None else k[index] for k in self.keys]
        self.values = [None if v is None else v[index] for v in self.values]

    def crop(self, length: int) -> None:
        """Keep the first slots, in place."""
        self.keys = [None if k is None else k[:, :, :length] for k in self.keys]
        self.values = [None if v is None else v[:, :, :length] for v in self.values]
        self.length = length


class Static(Growing):
    """Buffers of a fixed capacity, of which the filled part is read."""

    def __init__(self, layers: int, batch_size: int, heads: int, size: int, like: Tensor) -> None:
        super().__init__(layers)
        shape = (batch_size, heads, CAPACITY, size)
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The whole buffers; what is beyond the filled part has later positions than any query."""
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None
        assert values is not None
        end = self.length + key.shape[2]
        keys[:, :, self.length : end] = key.detach()
        values[:, :, self.length : end] = value.detach()
        return keys.clone(), values.clone()

    def positions(self, new: int) -> Tensor:
        """Positions of all slots."""
        return torch.arange(CAPACITY)

    def crop(self, length: int) -> None:
        """Forget in place: the positions beyond are hidden until they are written again."""
        self.length = length


class Ring(Growing):
    """The last ``WINDOW`` keys and values, in slots that rotate."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys in the window of the first new token, and the new ones."""
        keys, values = super().append(layer, key, value)
        self.keys[layer] = keys[:, :, -WINDOW:]
        self.values[layer] = values[:, :, -WINDOW:]
        return keys, values

    def positions(self, new: int) -> Tensor:
        """Positions of the kept and the new keys."""
        return torch.arange(max(0, self.length - WINDOW), self.length + new)

    def crop(self, length: int) -> None:
        """Refused once a token is gone."""
        if self.length > WINDOW and length < self.length:
            raise NotImplementedError("tokens that the ring has dropped cannot be had again")
        super().crop(length)


def _rotated(tensor: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of features by their position; ``positions`` is ``(B or 1, L)``."""
    half = tensor.shape[-1] // 2
    rates = 1.0 / 100.0 ** (torch.arange(half, dtype=torch.float32) / max(1, half))
    angles = positions[:, None, :, None].float() * rates
    cos, sin = angles.cos().to(tensor.dtype), angles.sin().to(tensor.dtype)
    one, two, rest = tensor[..., :half], tensor[..., half : 2 * half], tensor[..., 2 * half :]
    return torch.cat([one * cos - two * sin, one * sin + two * cos, rest], -1)


class Block(nn.Module):
    """Self-attention layers with residuals, norms and grouped heads.

    Args:
        size: E, divisible by 4.
        positions: ``"none"``, ``"rotary"``, ``"alibi"`` or ``"learned"`` (from the first real one).
        causal: hide the future.
        window: keys that a query sees, its own among them.
        layers: how many.
    """

    def __init__(
        self,
        size: int,
        positions: str = "none",
        causal: bool = True,
        window: int | None = None,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.kind, self.causal, self.window = positions, causal, window
        self.heads, self.groups, self.width = 4, 2, size // 4
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers))
        self.queries = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.keys = nn.ModuleList(nn.Linear(size, 2 * self.width) for _ in range(layers))
        self.values = nn.ModuleList(nn.Linear(size, 2 * self.width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        if positions == "learned":
            self.table = nn.Embedding(64, size)

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Growing | None = None,
    ) -> Tensor:
        """Hidden states ``(B, L, E)`` to hidden states."""
        new = hidden.shape[1]
        past = 0 if cache is None else cache.length
        own = torch.arange(past, past + new)
        if self.kind == "learned":
            ids = own.expand(hidden.shape[0], -1)
            if padding_mask is not None:
                ids = (padding_mask.cumsum(1) - 1).clamp_min(0)[:, past:]
            hidden = hidden + self.table(ids)
        others = own if cache is None else cache.positions(new)
        gap = own[:, None] - others[None, :]
        allowed = torch.ones_like(gap, dtype=torch.bool)
        if self.causal:
            allowed = allowed & (gap >= 0)
        if self.window is not None:
            allowed = allowed & (gap < self.window)
        allowed = allowed.expand(hidden.shape[0], 1, -1, -1)
        if padding_mask is not None:
            seen = torch.zeros(hidden.shape[0], len(others), dtype=torch.bool)
            inside = others < past + new
            seen[:, inside] = padding_mask[:, others[inside]]
            allowed = allowed & seen[:, None, None, :]
        for layer in range(len(self.norms)):
            hidden = hidden + self._attend(
                layer, self.norms[layer](hidden), allowed, gap, own, cache
            )
        if cache is not None:
            cache.length += new
        return hidden

    def rotated(self, tensor: Tensor, own: Tensor) -> Tensor:
        """Queries or keys, rotated by their positions."""
        return _rotated(tensor, own[None])

    def _attend(
        self,
        layer: int,
        hidden: Tensor,
        allowed: Tensor,
        gap: Tensor,
        own: Tensor,
        cache: Growing | None,
    ) -> Tensor:
        def heads(tensor: Tensor, count: int) -> Tensor:
            return tensor.unflatten(-1, (count, self.width)).transpose(1, 2)

        query = heads(self.queries[layer](hidden), self.heads)
        key = heads(self.keys[layer](hidden), self.groups)
        value = heads(self.values[layer](hidden), self.groups)
        if self.kind == "rotary":
            query, key = (self.rotated(tensor, own) for tensor in (query, key))
        if cache is not None:
            key, value = cache.append(layer, key, value)
        key, value = (tensor.repeat_interleave(2, 1) for tensor in (key, value))
        scores = query @ key.mT / max(1, self.width) ** 0.5
        if self.kind == "alibi":
            slopes = 2.0 ** -torch.arange(1.0, self.heads + 1)
            scores = scores - (slopes[:, None, None] * gap.abs()).to(scores.dtype)
        weights = scores.masked_fill(~allowed, -1e9 if scores.dtype != torch.float16 else -6e4)
        weights = weights.softmax(-1).masked_fill(~allowed, 0.0)
        return self.outs[layer]((weights @ value).transpose(1, 2).flatten(2))


def _legal(size: int) -> int:
    return max(8, size // 8 * 8)


def _growing(module: Block, batch_size: int) -> Growing:
    return Growing(len(module.norms))


def _ring(module: Block, batch_size: int) -> Ring:
    return Ring(len(module.norms))


def _static(module: Block, batch_size: int) -> Static:
    like = module.norms[0].weight
    return Static(len(module.norms), batch_size, module.groups, module.width, like)


def _cache(new: Callable[[Block, int], Growing], capacity: int | None = None) -> CacheSpec:
    return CacheSpec(
        new=new,
        select=lambda cache, index: cache.select(index),
        crop=lambda cache, length: cache.crop(length),
        length=lambda cache: cache.length,
        capacity=capacity,
    )


GROWING, STATIC, RING = _cache(_growing), _cache(_static, CAPACITY), _cache(_ring)
LEFT = ("left_padding_is_inert",)


def _spec(
    name: str,
    cache: CacheSpec | None = None,
    laws: tuple[str, ...] = (),
    *,
    padding: bool = True,
    causal: bool = True,
    window: int | None = None,
    **options: Any,
) -> LayerSpec:
    accepts = (*(["padding_mask"] if padding else []), *(["cache"] if cache else []))
    return LayerSpec(
        name=name,
        make=lambda size: Block(size, causal=causal, window=window, **options),
        causal=causal,
        window=window,
        accepts=accepts,
        cache=cache,
        sizes=_legal,
        laws=laws,
    )


RIGHT_LAYERS = {
    spec.name: spec
    for spec in (
        _spec("encoder", causal=False),
        _spec("causal_plain", padding=False),
        _spec("causal_padded"),
        _spec("window_plain", window=3, layers=1),
        _spec("causal_growing", cache=GROWING, laws=LEFT),
        _spec("causal_static", cache=STATIC, laws=LEFT, positions="rotary"),
        _spec("rotary_growing", cache=GROWING, laws=LEFT, positions="rotary"),
        _spec("alibi_growing", cache=GROWING, laws=LEFT, positions="alibi"),
        _spec("learned_growing", cache=GROWING, laws=LEFT, positions="learned"),
        _spec("ring", cache=RING, laws=LEFT, positions="rotary", window=WINDOW, layers=1),
        _spec("window_growing", cache=GROWING, window=3, layers=1),
    )
}
