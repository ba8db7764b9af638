"""Mistakes with sliding windows and rotating caches."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import BANDED, MIXED, RINGED, Banded, Mixed, Ringed
from attnbench_zoo.twins.stores import WINDOW, Cache, Ring

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_ringed = Group(RINGED, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_mixed = Group(MIXED, MUTANTS)


@_ringed("transformers#37574", killers=("calls_may_be_cut_anywhere",))
class RolledOneStepEarly(Ringed):
    """A ring that is just full loses its oldest token."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            full = self.length == WINDOW
            keys, values, slots = super().append(keys, values)
            cut = 2 if full else 0
            return keys[:, :, cut:], values[:, :, cut:], slots[cut:]

    stores = (_Ring,)


@_ringed("mlx-lm#1914", killers=("calls_may_be_cut_anywhere",))
class OneTokenEvictedACall(Ringed):
    """A full ring frees one cell a call: of a burst only the last token is stored."""

    class _Ring(Ring):
        def write(self, ring: Tensor, new: Tensor, slots: Tensor) -> Tensor:
            full = self.length - len(slots) >= WINDOW
            return (
                super().write(ring, new[:, :, -1:], slots[-1:])
                if full
                else super().write(ring, new, slots)
            )

    stores = (_Ring,)


@_ringed("transformers#47708", killers=("calls_may_be_cut_anywhere",))
class RingReadByTokensSeen(Ringed):
    """What the ring holds is read as if it were full: right once it is."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            partly = 0 < self.length < WINDOW and self.length % 2 == 0
            keys, values, slots = super().append(keys, values)
            return (keys.roll(1, 2) if partly else keys), values, slots

    stores = (_Ring,)


@_ringed("mlx-lm#1673", killers=("calls_may_be_cut_anywhere",))
class EvictedByAllocatedLength(Ringed):
    """A call of several tokens allocates, and what was held before goes."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if keys.shape[2] >= WINDOW:
                self.first = self.length
            return super().append(keys, values)

    stores = (_Ring,)


@_ringed("mlx-vlm#1715", killers=("cropped_slots_are_forgotten",))
class RingCutByLogicalLength(Ringed):
    """A ring that has wrapped is cropped by moving its counter, though tokens are gone."""

    class _Ring(Ring):
        def check(self, length: int) -> None:
            pass

    stores = (_Ring,)


@_banded("transformers#48280", killers=("cropped_slots_are_forgotten",))
class WindowOfTheUncroppedLength(Banded):
    """After a crop the window still ends where the cache did before."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        lost = 0

        def crop(self, length: int) -> None:
            self.lost = self.length - length
            super().crop(length)

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        lost = getattr(cache, "lost", 0)
        return allowed & (own[:, None] - slots < WINDOW - min(lost, WINDOW - 1))


@_banded("hnet#20", "nanochat#456", "unsloth#8253", killers=("calls_may_be_cut_anywhere",))
class NoWindowInSteps(Banded):
    """A step of one token sees everything."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        if len(own) > 1:
            return super().reach(block, distance, own)
        return distance >= 0


@_banded("unsloth#8253", killers=("training_equals_evaluation",))
class NoWindowInTraining(Banded):
    """The window is applied in evaluation only."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        return distance >= 0 if self.training else super().reach(block, distance, own)


@_banded("hnet#20", killers=("outputs_see_no_more_than_the_window",))
class NoWindowWithoutACache(Banded):
    """The call without a cache sees everything."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None:
            return super().allowed(block, own, slots, real, cache)
        visible = (own[:, None] >= slots)[None]
        return visible if real is None else visible & self.known(real, slots)


@_banded("executorch#21857", killers=("calls_may_be_cut_anywhere",))
class OneLowerBoundForAChunk(Banded):
    """All queries of a later chunk share the lower bound of the first."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        return (distance >= 0) & (distance[:1] < WINDOW) if len(own) and own[0] else visible


@_banded("keras-hub#1738", killers=("calls_may_be_cut_anywhere",))
class WindowNoWiderThanTheCall(Banded):
    """The window is the smaller of its width and the number of queries: a step sees itself."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        return super().reach(block, distance, own) & (distance < max(1, len(own)))


@_ringed("mlx-lm#439", killers=("padded_rows_decode_as_alone",))
class PaddingPushesTokensOut(Ringed):
    """Padding is stored behind the tokens of a shorter row, and takes one of their places."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        if real is None or cache is None:
            return allowed
        padded = ~real.all(1)[:, None, None]
        return allowed & ~(padded & (own[:, None] - slots == WINDOW - 1))


@_banded("vllm#3385", killers=("outputs_see_no_more_than_the_window",))
class WindowOneTooWide(Banded):
    """A token sees the window and one more, beyond what is declared."""

    windows = (WINDOW + 1, WINDOW + 1)


@_ringed("mlx-examples#1093", killers=("calls_may_be_cut_anywhere",))
class RoomForOneLessAfterAChunk(Ringed):
    """Filled by a chunk the ring holds one token less than filled by steps."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            count = keys.shape[2]
            given = super().append(keys, values)
            if count > 1 and self.length > WINDOW:
                self.first = max(self.first, self.length - WINDOW + 2)
            return given

    stores = (_Ring,)


@_ringed("mlx-lm#1000", "vllm-metal#117", killers=("calls_may_be_cut_anywhere",))
class CursorTakenForTheNumberHeld(Ringed):
    """After a wrap the write cursor is taken for the number of tokens that are held."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if self.length > WINDOW:
                self.first = max(self.first, self.length - self.length % WINDOW)
            return super().append(keys, values)

    stores = (_Ring,)


@_mixed("mlx-lm#1494", killers=("cropped_slots_are_forgotten",))
class OneBlockCroppedTheOtherNot(Mixed):
    """Where the ring cannot be cropped, the block without a window is cropped all the same."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def crop(self, length: int) -> None:
            for store in self.stores:
                if not isinstance(store, Ring) or store.first == 0:
                    store.crop(length)
            self.length = length


@_ringed("keys_values#140", killers=("calls_may_be_cut_anywhere",))
class NewTokensAttendedTwice(Ringed):
    """A full ring is written before it is read: the oldest of what is held is a new token."""

    class _Ring(Ring):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            full, new = self.length >= WINDOW, keys.shape[2]
            keys, values, slots = super().append(keys, values)
            if full and 0 < new < WINDOW:
                keys = torch.cat([keys[:, :, :1] * 0 + keys[:, :, -1:], keys[:, :, 1:]], 2)
            if full and 0 < new < WINDOW:
                slots = torch.cat([slots[1:2], slots[1:]])
            return keys, values, slots

    stores = (_Ring,)
