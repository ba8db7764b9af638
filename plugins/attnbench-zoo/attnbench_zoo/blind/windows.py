"""Sliding windows, as a mask and as a ring, and sinks beside them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.layers import BANDED, MIXED, RINGED, Banded, Mixed, Ringed
from attnbench_zoo.twins.options import OPTIONS, Options
from attnbench_zoo.twins.stores import WINDOW, Cache, Ring

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_options = Group(OPTIONS, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_ringed = Group(RINGED, MUTANTS)
_mixed = Group(MIXED, MUTANTS)


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


@_options("jax-ml/jax#32300")
class WindowForgottenWithoutAMask(Options):
    """Where no mask, length or causality is given nothing is hidden, whatever the window."""

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        if attn_mask is None and valid_lens is None and not is_causal:
            self.given = (None, *self.given[1:])
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_options("ROCm/rocm-libraries#12227")
class SinkTwiceWhereTheFirstHalfIsEmpty(Options):
    """Keys are read in halves: where the window hides the first from a block, sinks count twice."""

    def sink(self, sinks: Tensor, hidden: Tensor) -> Tensor:
        column, window = super().sink(sinks, hidden), self.given[0]
        if window is None:
            return column
        q_len, kv_len = hidden.shape[-2:]
        seen = self.window(self.steps(q_len, kv_len, hidden.device), *window)
        blocks = seen[:, : (kv_len + 1) // 2].split(BLOCK)
        twice = torch.cat([(~block.any()).expand(len(block)) for block in blocks])
        return column + math.log(2) * twice.unsqueeze(-1).to(column.dtype)


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


@_banded("huggingface/transformers#41228")
class FutureBeyondTheWindowIsSeen(Banded):
    """The window bounds which later tokens are hidden, and no earlier ones."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        window = self.windows[block]
        assert window is not None
        return (distance >= 0) | (distance < -window)


@_ringed("huggingface/transformers#45940")
class EmptySlotsOfTheRingAreSeen(Ringed):
    """A ring that is not full yet is given whole, with zeros in its empty slots."""

    class _Store(Ring):
        def __init__(self, empty: Tensor) -> None:
            super().__init__(empty)
            self.first = -WINDOW

    stores = (_Store,)


@_ringed("pytorch/executorch#21384")
class WindowByEvictionAlone(Ringed):
    """The window is what the ring holds; the tokens of one call see all of its earlier ones."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        in_the_call = own.unsqueeze(-1) - distance >= own[0]
        return super().reach(block, distance, own) | (in_the_call & (distance >= 0))


@_ringed("ml-explore/mlx-swift-lm#584")
class OverwrittenCellsAfterACrop(Ringed):
    """A crop moves the counters of a ring that has wrapped; later tokens stay in older cells."""

    class _Store(Ring):
        def check(self, length: int) -> None:
            pass

        def crop(self, length: int) -> None:
            super().crop(length)
            self.first = max(0, length - WINDOW)

    stores = (_Store,)


@_mixed("ml-explore/mlx-swift-lm#424")
class CropDoesNothingOnceARingWraps(Mixed):
    """Once one block's ring has wrapped, a crop leaves every block as it was, without a word."""

    class _Cache(Cache):
        def crop(self, length: int) -> None:
            if not any(isinstance(store, Ring) and store.first > 0 for store in self.stores):
                super().crop(length)

    cache = _Cache


@_ringed("ollama/ollama#14912")
class HeldTokensInOrderOfTheRing(Ringed):
    """Several new tokens are put behind the ring as it lies, not behind its oldest token."""

    class _Store(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            held = torch.arange(self.first, self.length)
            all_keys, all_values, slots = super().append(keys, values)
            if keys.shape[2] > 1:
                lying = torch.cat([self.cells(held).argsort(), torch.arange(len(held), len(slots))])
                all_keys, all_values = all_keys[:, :, lying], all_values[:, :, lying]
            return all_keys, all_values, slots

    stores = (_Store,)
