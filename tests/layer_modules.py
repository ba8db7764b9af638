"""Modules on hidden states as people write them, with their caches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec

EVEN = {"sizes": lambda size: max(2, size // 2 * 2)}


class Heads(nn.Module):
    """Causal attention of two heads, to be called in several ways."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(size, size) for _ in range(4))

    def split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return tuple(m(hidden).unflatten(-1, (2, -1)).transpose(1, 2) for m in self.maps[:3])

    def pooled(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        past = k.shape[2] - q.shape[2]
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(past + 1)
        low = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(later, low).clamp_min(low).softmax(-1)
        output: Tensor = self.maps[3]((weights @ v).transpose(1, 2).flatten(2))
        return output


class Causal(Heads):
    """Always causal."""

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(*self.split(x))


class Additive(Heads):
    """An additive mask, and tuples of keys and values that come and go."""

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
    ) -> Any:
        q, k, v = self.split(x)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        output = self.pooled(q, k, v, 0.0 if attention_mask is None else attention_mask)
        return output, (k, v) if use_cache else None


class Ones(Heads):
    """A mask of 1 and 0."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        assert set(attention_mask.unique().tolist()) <= {0, 1}
        bias = (1.0 - attention_mask.to(x.dtype)) * torch.finfo(x.dtype).min
        return self.pooled(*self.split(x), bias[:, None, None])


class Inside(Heads):
    """The cache is in the module, and positions come as a number of tokens seen."""

    kept: Tensor | None

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("kept", None, persistent=False)
        self.seen: list[int] = []

    def forward(self, x: Tensor, start_pos: int, use_cache: bool = False) -> Tensor:
        q, k, v = self.split(x)
        if use_cache:
            self.seen.append(start_pos)
            self.kept = (
                torch.stack([k, v])
                if self.kept is None
                else torch.cat([self.kept, torch.stack([k, v])], 3)
            )
            k, v = self.kept
        return self.pooled(q, k, v)

    def reset(self) -> None:
        self.kept, self.seen = None, []

    def reorder(self, index: Tensor) -> None:
        self.kept = self.kept if self.kept is None else self.kept[:, index]

    def crop(self, length: int) -> None:
        self.kept = self.kept if self.kept is None else self.kept[..., :length, :]


INSIDE = CacheSpec(
    new=lambda module, batch_size: module.reset(),
    select=lambda module, index: module.reorder(index),
    crop=lambda module, length: module.crop(length),
    length=lambda module: 0 if module.kept is None else module.kept.shape[3],
)


class Box:
    """A cache that a call hands back; another one from it."""

    def __init__(self, parts: tuple[Tensor, ...] = ()) -> None:
        self.parts = parts


class HandsBack(Heads):
    """Gives ``(output, weights, cache)``; its cache is handed back, and not changed in place."""

    def forward(self, x: Tensor, cache: Box | None = None) -> Any:
        q, k, v = self.split(x)
        if cache is None:
            return self.pooled(q, k, v), None, None
        if cache.parts:
            k, v = torch.cat([cache.parts[0], k], 2), torch.cat([cache.parts[1], v], 2)
        return self.pooled(q, k, v), q @ k.mT, Box((k, v))


class Stacked(Heads):
    """Gives back keys and values in one tensor ``(2, B, ...)``."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        return self.pooled(q, k, v), torch.stack([k, v])


class Summed(Stacked):
    """Gives back what has no rows."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, kept = super().forward(x)
        return output, kept.sum()


class NeedsItsMask(Heads):
    """An encoder whose mask of padding has no default."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        q, k, v = self.split(src)
        scores = (q @ k.mT).masked_fill(src_key_padding_mask[:, None, None], -1e4)
        output: Tensor = self.maps[3]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return output


class Counted(Stacked):
    """Gives back a dict of keys, values and their number."""

    def forward(self, x: Tensor, cache: Any = None) -> Any:
        given = None if cache is None else torch.stack([cache["key"], cache["value"]])
        output, kept = super().forward(x, given)
        count = x.shape[1] + (cache["count"] if cache else 0)
        return output, {"key": kept[0], "value": kept[1], "count": count}


class GivesBack(Additive):
    """With ``use_cache`` a tuple that ends with keys and values."""

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        output, *rest = super().forward(x, attention_mask, past_key_values, use_cache)
        return (output, *rest) if use_cache else (output,)


class Decodes(GivesBack):
    """Attends to a second sequence, whose keys and values it gives back beside its own."""

    def forward(
        self, x: Tensor, memory: Any = None, past_key_values: Any = None, use_cache: bool = False
    ) -> Any:
        own, cross = past_key_values or (None, None)
        cross = cross or (self.split(memory)[1:])
        output, own = super().forward(x, None, own, True)
        q, *_ = self.split(output)
        seen = (q @ cross[0].mT).softmax(-1) @ cross[1]
        output = output + self.maps[3](seen.transpose(1, 2).flatten(2))
        return (output, (own, cross)) if use_cache else (output,)


class Preallocated(Heads):
    """Keys and values are written into buffers for so many rows, as in Llama's own code."""

    def __init__(self, size: int, rows: int = 6, slots: int = 40) -> None:
        super().__init__(size)
        self.keys, self.values = torch.zeros(2, rows, 2, slots, size // 2)

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        (batch, length), (q, k, v) = x.shape[:2], self.split(x)
        self.keys, self.values = self.keys.to(x).clone(), self.values.to(x).clone()
        self.keys[:batch, :, start_pos : start_pos + length] = k
        self.values[:batch, :, start_pos : start_pos + length] = v
        whole = (t[:batch, :, : start_pos + length] for t in (self.keys, self.values))
        return self.pooled(q, *whole)


class SquareMask(Heads):
    """A mask for so many tokens, as in minGPT."""

    def __init__(self, size: int, room: int = 9) -> None:
        super().__init__(size)
        self.register_buffer("later", torch.ones(room, room).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        low = torch.finfo(x.dtype).min
        return self.pooled(*self.split(x), self.later[:length, :length].to(x) * low)


class Hidden(nn.Module):
    """Self-attention of two heads that hides padded keys with minus infinity."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        heads = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1)
        )
        query, key, value = heads
        scores = query @ key.mT
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask[:, None, None], -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(hidden.shape))


class LowestOfFloat32(Hidden):
    """It hides keys with a number that float16 does not have."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is not None:
            hidden = hidden.masked_fill(~padding_mask.any(1)[:, None, None], -1e9) * 1.0
        return super().forward(hidden, padding_mask)


class HeldForInference(Preallocated):
    """Without a position, it is trained and holds nothing; with one, it has no gradients."""

    def forward(self, x: Tensor, start_pos: int | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and start_pos is None):
            return super().forward(x, start_pos or 0)


class SoftmaxInFloat32(nn.Module):
    """The lowest number of float64 is minus infinity in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        scores = query @ key.mT
        if attention_mask is not None:
            real = attention_mask[:, None].bool()
            scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
