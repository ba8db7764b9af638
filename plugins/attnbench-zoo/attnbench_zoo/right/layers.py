"""Right layers in stages: two blocks, grouped heads, each kind of positions and of cache."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec
from attnbench_zoo.base import Twin

__all__ = [
    "BANDED",
    "CAPACITY",
    "DROPPING",
    "ENCODING",
    "GROUPED",
    "GROWING",
    "GROWING_SPEC",
    "LEARNED",
    "LINEAR",
    "LONG",
    "MIXED",
    "PARTED",
    "RAGGED",
    "REGISTERED",
    "RINGED",
    "SINKING",
    "SLOPED",
    "STATIC",
    "TAIL",
    "UNCACHED",
    "WINDOW",
    "Banded",
    "Cache",
    "Dropping",
    "Encoding",
    "Growing",
    "Layer",
    "Learned",
    "Linear",
    "Long",
    "Mixed",
    "Parted",
    "PartedLayer",
    "Registered",
    "Ring",
    "Ringed",
    "Sinking",
    "Sloped",
    "Static",
    "StaticLayer",
]

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


class Learned(Layer):
    """Positions are learned vectors."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.positions = nn.Embedding(128, size)

    def embed(self, hidden: Tensor, where: Tensor) -> Tensor:
        """Hidden states plus the vectors of their positions."""
        vectors: Tensor = self.positions(where)
        return hidden + vectors

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor


class Sloped(Layer):
    """Scores fall with the distance."""

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor

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


class Registered(Encoding):
    """Two learned registers stand before the tokens; there are no positions."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.registers = nn.Parameter(torch.randn(2, size))

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor

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


def _twin(made: type[Layer], capacity: int | None = None, **changes: object) -> Twin:
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
    spec = LayerSpec(**{**known, **changes})
    return Twin(spec.name, spec)


GROWING = _twin(Layer, name="growing_layer")
LEARNED = _twin(Learned, conventions={})
UNCACHED = _twin(
    Learned, name="uncached_layer", cache=None, accepts=("padding_mask",), conventions={}
)
SLOPED = _twin(Sloped)
BANDED = _twin(Banded, window=2 * WINDOW - 1)
RINGED = _twin(Ringed, window=WINDOW)
MIXED = _twin(Mixed)
GROWING_SPEC = GROWING.spec
STATIC = _twin(StaticLayer, name="static_layer", same_as="attnbench_zoo.right.layers:GROWING_SPEC")
PARTED = _twin(PartedLayer, name="parted_layer")
LONG = _twin(Long, capacity=320)
SINKING = _twin(Sinking)
ENCODING = _twin(Encoding)
REGISTERED = _twin(Registered, conventions={})
DROPPING = _twin(Dropping, exempt={"training_equals_evaluation": "it has dropout of its own"})
GROUPED = _twin(Layer, name="grouped_layer", heads=4, kv_heads=2)
RAGGED = _twin(Layer, name="ragged_layer", laws=("left_padding_is_inert", "right_padding_is_inert"))


class Linear(Layer):
    """Weights are products of positive features, divided by their sum (Katharopoulos et al. 2020).

    Written with a row of weights for each query, which is what the recurrent form adds up to.
    """

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Output ``(B, H, L, D)`` of grouped heads; zeros for a query that sees nothing."""
        repeats = self.heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        query, key = self.features(query), self.features(key)
        seen = allowed[:, None].to(query.dtype)
        sums = self.sums(query, key, seen)
        return (query @ key.mT * seen) @ value / sums.masked_fill(sums == 0, 1.0)

    def features(self, tensor: Tensor) -> Tensor:
        """Positive features."""
        return nn.functional.elu(tensor) + 1

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        """What the rows of products are divided by, ``(B, H, L, 1)``."""
        return (query * (seen @ key)).sum(-1, keepdim=True)


assert isinstance(GROWING.spec, LayerSpec)
LINEAR = Twin("linear_layer", replace(GROWING.spec, name="linear_layer", make=Linear))
