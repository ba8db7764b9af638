"""Right layers in stages: two blocks, grouped heads, each kind of positions and of cache."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec
from attnbench_zoo.right.stores import CAPACITY, WINDOW, Cache, Growing, Parted, Ring, Static


class Layer(nn.Module):
    """Two blocks of causal self-attention with rotary positions and a growing cache.

    Args:
        size: E, a multiple of 8.
    """

    heads, groups = 4, 2
    causal: ClassVar[bool] = True
    windows: ClassVar[tuple[int | None, ...]] = (None, None)
    stores: ClassVar[tuple[type[Growing], ...]] = (Growing, Growing)
    cache: ClassVar[type[Cache]] = Cache

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size // self.heads
        narrow = self.groups * self.width
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in self.stores)
        self.queries = nn.ModuleList(nn.Linear(size, size) for _ in self.stores)
        self.keys = nn.ModuleList(nn.Linear(size, narrow, bias=False) for _ in self.stores)
        self.values = nn.ModuleList(nn.Linear(size, narrow) for _ in self.stores)
        self.outs = nn.ModuleList(nn.Linear(size, size) for _ in self.stores)
        for maps in (self.queries, self.keys):
            for part in maps:
                nn.init.normal_(part.weight, std=2 * size**-0.5)

    def new_cache(self, batch_size: int) -> Cache:
        """An empty cache."""
        like = self.keys[0].weight
        empty = like.new_zeros(batch_size, self.groups, 0, self.width)
        return self.cache([store(empty) for store in self.stores])

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Output ``(B, L, E)`` of ``(B, L, E)``."""
        past = 0 if cache is None else cache.length
        where = self.where(past, hidden.shape[1], padding_mask)
        hidden = self.embed(hidden, where)
        for block in range(len(self.stores)):
            hidden = hidden + self.block(block, hidden, where, padding_mask, cache)
        if cache is not None:
            cache.advance(hidden.shape[1])
        return hidden

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        """Positions ``(B or 1, L)`` of the new tokens, counted from the first real one."""
        if real is None:
            return torch.arange(past, past + count)[None]
        return (real.cumsum(1) - 1).clamp_min(0)[:, past:]

    def embed(self, hidden: Tensor, where: Tensor) -> Tensor:
        """Hidden states that may know their positions."""
        return hidden

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """What one block adds."""
        hidden = self.norms[block](hidden)
        query, key, value = (
            self.split(maps[block](hidden)) for maps in (self.queries, self.keys, self.values)
        )
        query, key = self.turn(query, where), self.turn(key, where)
        past = 0 if cache is None else cache.length
        own = torch.arange(past, past + hidden.shape[1])
        if cache is None:
            slots = own
        else:
            key, value, slots = cache.stores[block].append(key, value)
        allowed = self.allowed(block, own, slots, real, cache)
        heads = self.attend(query, key, value, allowed, self.bias(own, slots))
        output: Tensor = self.outs[block](heads.transpose(1, 2).flatten(2))
        return output

    def split(self, tensor: Tensor) -> Tensor:
        """``(B, L, H D)`` as ``(B, H, L, D)``."""
        return tensor.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Queries or keys ``(B, H, L, D)``, turned by their positions."""
        cos, sin = self.table(where, tensor.shape[2])
        a, b = tensor.float().chunk(2, -1) if tensor.dtype != torch.float64 else tensor.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(tensor.dtype)

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine ``(B or 1, 1, L, D / 2)`` of the positions."""
        half = self.width // 2
        rates = 100.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = (where[:, None, :, None] * rates).to(self.keys[0].weight.dtype)
        angles = angles.float() if angles.dtype != torch.float64 else angles
        return angles.cos(), angles.sin()

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Which slots each query sees, ``(B or 1, L, S)``."""
        distance = own[:, None] - slots
        visible = self.reach(block, distance, own)
        return visible[None] if real is None else visible & self.known(real, slots)

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        """Which distances ``(L, S)`` a query sees."""
        window = self.windows[block]
        visible = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return visible if window is None else visible & (distance < window)

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        """Which slots are real, ``(B, 1, S)``; of slots beyond the mask none is."""
        return nn.functional.pad(real, (0, CAPACITY))[:, None, slots]

    def bias(self, own: Tensor, slots: Tensor) -> Tensor | None:
        """What is added to the scores, ``(H, L, S)``."""
        return None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Output ``(B, H, L, D)`` of grouped heads; zeros for a query that sees nothing."""
        repeats = self.heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = (query / math.sqrt(self.width)) @ key.mT
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        return self.weights(scores, allowed[:, None]) @ value

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Softmax over what is allowed."""
        empty = ~allowed.any(-1, keepdim=True)
        return scores.masked_fill(~(allowed | empty), -math.inf).softmax(-1).masked_fill(empty, 0.0)


class Unturned(Layer):
    """Queries and keys do not know their positions."""

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor


class Learned(Unturned):
    """Positions are learned vectors."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.positions = nn.Embedding(128, size)

    def embed(self, hidden: Tensor, where: Tensor) -> Tensor:
        """Hidden states plus the vectors of their positions."""
        vectors: Tensor = self.positions(where)
        return hidden + vectors


class Sloped(Unturned):
    """Scores fall with the distance."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        """A slope a head."""
        slopes = 2.0 ** -torch.arange(1, self.heads + 1)
        return -(own[:, None] - slots).abs() * slopes[:, None, None]


class Banded(Layer):
    """A sliding window as a mask over a growing cache."""

    windows = (WINDOW, WINDOW)


class Ringed(Layer):
    """One block with a sliding window, in a ring that holds no more."""

    windows = (WINDOW,)
    stores = (Ring,)


class Mixed(Layer):
    """A block that sees all in a buffer, and one with a sliding window in a ring."""

    windows = (None, WINDOW)
    stores = (Static, Ring)


class StaticLayer(Layer):
    """The cache is a buffer of fixed capacity."""

    stores = (Static, Static)


class PartedLayer(Layer):
    """The cache has two parts."""

    stores = (Parted, Parted)


class Sinking(Layer):
    """Each head has a learned sink, to which a query may give weight instead of to a token."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.sinks = nn.Parameter(torch.randn(self.heads))

    def sink(self, scores: Tensor) -> Tensor:
        """A logit for each head and row, ``(1, H, L, 1)``."""
        shape = (1, self.heads, scores.shape[2], 1)
        return self.sinks.reshape(1, -1, 1, 1).expand(shape).to(scores.dtype)

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Softmax over what is allowed and the sink."""
        hidden = scores.masked_fill(~allowed, -math.inf)
        sink = self.sink(scores).expand(*scores.shape[:-1], 1)
        return torch.cat([hidden, sink], -1).softmax(-1)[..., :-1]


class Long(Layer):
    """Angles are computed in float32 at least, so that positions beyond 256 stay apart."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of angles that no half type rounds."""
        half = self.width // 2
        rates = 100.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = self.positions(where)[:, None, :, None] * rates
        wide = torch.promote_types(self.keys[0].weight.dtype, torch.float32)
        return angles.cos().to(wide), angles.sin().to(wide)

    def positions(self, where: Tensor) -> Tensor:
        """Positions as they enter the angles."""
        return where.double()


class Dropping(Layer):
    """In training, weights are dropped."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Softmax over what is allowed, with dropout."""
        return nn.functional.dropout(super().weights(scores, allowed), 0.2, self.training)


class Encoding(Layer):
    """Every token sees every other; no cache."""

    causal = False


class Registered(Unturned, Encoding):
    """Two learned registers stand before the tokens; there are no positions."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.registers = nn.Parameter(torch.randn(2, size))

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Outputs of the tokens, without those of the registers."""
        if padding_mask is not None:
            padding_mask = nn.functional.pad(padding_mask, (2, 0), value=True)
        registers = self.registers.expand(len(hidden), -1, -1)
        outputs = super().forward(torch.cat([registers, hidden], 1), padding_mask)
        return self.without_registers(outputs)

    def without_registers(self, outputs: Tensor) -> Tensor:
        """What is left where the registers go."""
        return outputs[:, len(self.registers) :]


def legal(size: int) -> int:
    """The nearest multiple of 8."""
    return max(8, round(size / 8) * 8)


def twin(made: type[Layer], capacity: int | None = None, **changes: object) -> LayerSpec:
    """The spec of a class of layers, with changes."""
    cached = made.causal
    capacity = CAPACITY if Static in made.stores else capacity
    cache = CacheSpec(
        new=lambda module, batch_size: module.new_cache(batch_size),
        select=lambda cache, index: cache.select(index),
        crop=lambda cache, length: cache.crop(length),
        length=lambda cache: cache.length,
        capacity=capacity,
    )
    known: dict[str, object] = {
        "name": made.__name__.lower() + "_layer",
        "make": made,
        "causal": made.causal,
        "accepts": ("padding_mask", "cache") if cached else ("padding_mask",),
        "cache": cache if cached else None,
        "sizes": legal,
        "laws": ("left_padding_is_inert",),
        "conventions": {"positions": "relative"},
    }
    return LayerSpec(**{**known, **changes})


GROWING = twin(Layer, name="growing_layer")
LEARNED = twin(Learned, conventions={})
UNCACHED = twin(
    Learned, name="uncached_layer", cache=None, accepts=("padding_mask",), conventions={}
)
SLOPED = twin(Sloped)
BANDED = twin(Banded, window=2 * WINDOW - 1)
RINGED = twin(Ringed, window=WINDOW)
MIXED = twin(Mixed)
STATIC = twin(StaticLayer, name="static_layer", same_as="attnbench_zoo.right.layers:GROWING")
PARTED = twin(PartedLayer, name="parted_layer")
LONG = twin(Long, capacity=320)
SINKING = twin(Sinking)
ENCODING = twin(Encoding)
REGISTERED = twin(Registered, conventions={"positions": "none"})
DROPPING = twin(Dropping, exempt={"training_equals_evaluation": "it has dropout of its own"})
GROUPED = twin(Layer, name="grouped_layer", heads=4, kv_heads=2)
RAGGED = twin(Layer, name="ragged_layer", laws=("left_padding_is_inert", "right_padding_is_inert"))
