"""The blind part: mutants of public bugs by someone who had not read the invariants.

Its author knew the names of the invariants, not their code. The suite is never changed for one of
these; what it does not find stands in the manual. None names an invariant that is meant to kill it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS, Heads
from attnbench_zoo.twins.layers import (
    BANDED,
    GROWING,
    LEARNED,
    STATIC,
    Banded,
    Layer,
    Learned,
    StaticLayer,
)
from attnbench_zoo.twins.options import OPTIONS, Options
from attnbench_zoo.twins.relative import ROTARY, Rotary
from attnbench_zoo.twins.stores import Static

__all__ = ["BLIND"]

BLIND: list[Mutant] = []
_attention = Group(ATTENTION, BLIND)
_heads = Group(HEADS, BLIND)
_rotary = Group(ROTARY, BLIND)
_options = Group(OPTIONS, BLIND)
_growing = Group(GROWING, BLIND)
_learned = Group(LEARNED, BLIND)
_banded = Group(BANDED, BLIND)
_static = Group(STATIC, BLIND)


@_heads("jsbaan/transformer-from-scratch#6")
class HeadsMergedWithoutAPermute(Heads):
    """The heads are merged by a reshape alone, which mixes positions into one token."""

    def merge(self, tensor: Tensor) -> Tensor:
        _, length, size = tensor.shape
        return tensor.reshape(-1, length, self.heads * size)


@_attention("labmlai/annotated_deep_learning_paper_implementations#146")
class SoftmaxOverTheQueries(Attention):
    """The softmax is taken along the queries, so that each key's column sums to 1."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-2).nan_to_num(0.0).masked_fill(~allowed, 0.0)


@_attention("HsiaoYetGun/ESIM#5")
class SoftmaxOfATransposedBatch(Attention):
    """Every axis is turned round for the softmax, which is then taken over the first one."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(0).nan_to_num(0.0).masked_fill(~allowed, 0.0)


@_rotary("raiyanyahya/how-to-train-your-gpt#6")
class RatesOfNeighboursForHalves(Rotary):
    """The rates belong to neighbouring features, and the halves are turned by them."""

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        pairs = tensor.shape[-1] // 2
        first, second, rest = tensor.double().split([pairs, pairs, tensor.shape[-1] % 2], -1)
        angles = positions.unsqueeze(-1) * self.rates(pairs).repeat_interleave(2)
        near, far = angles[..., :pairs], angles[..., pairs:]
        turned = (
            first * near.cos() - second * near.sin(),
            first * far.sin() + second * far.cos(),
            rest,
        )
        return torch.cat(turned, -1).to(tensor.dtype)


@_rotary("vllm-project/vllm-ascend#12820")
class InterleavedFlagIgnored(Rotary):
    """Neighbouring features are turned against each other, where the model has halves."""

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        pairs = tensor.shape[-1] // 2
        wide = tensor.double()
        even, odd, rest = (
            wide[..., : 2 * pairs : 2],
            wide[..., 1 : 2 * pairs : 2],
            wide[..., 2 * pairs :],
        )
        angle = positions.unsqueeze(-1) * self.rates(pairs)
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.cat([torch.stack(turned, -1).flatten(-2), rest], -1).to(tensor.dtype)


@_learned("NVIDIA/Megatron-LM#453")
class PositionIdsIgnored(Learned):
    """Positions are those in the row, whatever the first real token is."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, None)


@_growing("mlfoundations/open_lm#4")
class TurnedByTheHead(Layer):
    """Queries and keys are turned by the number of their head, not by their position."""

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        heads = torch.arange(tensor.shape[1])[None]
        return super().turn(tensor.transpose(1, 2), heads).transpose(1, 2)


@_options("zml/zml#763")
class WindowCountsWithoutItself(Options):
    """The window is handed on by its width, to a kernel that adds the query's own key."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        return super().window(steps, before + 1 if before >= 0 else before, after)


@_options("huggingface/transformers#47010")
class RightEdgeIsExcluded(Options):
    """The right edge of the window is compared by ``<``."""

    def window(self, steps: Tensor, before: int, after: int) -> Tensor:
        return super().window(steps, before, after - 1 if after > 0 else after)


@_banded("microsoft/onnxruntime#25927")
class WindowExcludesTheCurrentToken(Banded):
    """The window counts the tokens before the current one, which is seen besides."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        window = self.windows[block]
        assert window is not None
        return (distance >= 0) & (distance <= window)


@_banded("sgl-project/sglang#34273")
class OneMoreTokenBehindAPrefix(Banded):
    """A call that goes on from a cache sees one token more than the window."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        window = self.windows[block]
        assert window is not None
        return (distance >= 0) & (distance < window + int(own[0] > 0))


@_attention("ml-explore/mlx-lm#1626")
class MaskMixesHeadsOverOneKeyHead(Attention):
    """With one head of keys, each head of queries gets the bias of the first one."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **given: object,
    ) -> object:
        grouped = given.get("enable_gqa") and key.shape[-3] == 1 < query.shape[-3]
        if grouped and attn_mask is not None and attn_mask.dim() > 2 and attn_mask.shape[-3] > 1:
            attn_mask = attn_mask[..., :1, :, :]
        return super().forward(query, key, value, attn_mask, **given)


@_learned("huggingface/candle#1517")
class PositionCountsCallsWithoutACache(Learned):
    """The position is advanced in each call, also where no cache is given."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.seen = 0

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        if past == 0 and real is None:
            where, self.seen = (where + self.seen) % 128, self.seen + count
        return where


@_static("vllm-project/vllm#43961")
class StaleTailTimesZero(StaticLayer):
    """A new cache takes over the memory of an old one, whose tail is multiplied by weights of 0."""

    class _Store(Static):
        def __init__(self, empty: Tensor) -> None:
            super().__init__(empty)
            self.keys, self.values = self.keys.fill_(torch.nan), self.values.fill_(torch.nan)

    stores = (_Store, _Store)


@_attention("speechbrain/speechbrain#3086")
class MaskAsWideAsTheLongestItem(Attention):
    """Lengths make a mask as wide as the longest item; what lies beyond it is seen by all."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        beyond = torch.arange(kv_len, device=query.device) >= valid_lens.max()
        return super().lengths(valid_lens, query, kv_len) | beyond
