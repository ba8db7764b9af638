"""Positions that are counted, turned or weighed wrongly."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.distance import DISTANCE, Distance
from attnbench_zoo.twins.layers import (
    GROWING,
    LEARNED,
    LONG,
    SLOPED,
    Layer,
    Learned,
    Long,
    Sloped,
)
from attnbench_zoo.twins.relative import ROTARY, Rotary

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_rotary = Group(ROTARY, MUTANTS)
_growing = Group(GROWING, MUTANTS)
_learned = Group(LEARNED, MUTANTS)
_long = Group(LONG, MUTANTS)
_sloped = Group(SLOPED, MUTANTS)
_distance = Group(DISTANCE, MUTANTS)


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


@_rotary("pie-project/pie#602")
class RatesOfTheWholeWidth(Rotary):
    """The exponent of the rates counts pairs, and is divided by features."""

    def rates(self, pairs: int) -> Tensor:
        return super().rates(2 * pairs)[:pairs]


@_sloped("paiml/aprender#2143")
class SlopesBeginAtOne(Sloped):
    """The exponent of the slopes is one too small: the first head's slope is 1."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        return 2 * super().bias(own, slots)


@_sloped("huggingface/candle#899")
class BiasWithoutTheCache(Sloped):
    """The bias of tokens behind a cache is that of the first positions."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        return super().bias(own - own[:1], slots)


@_learned("Comfy-Org/ComfyUI#15698")
class StepAtTheWidthOfTheBatch(Learned):
    """A step takes the padded width as position, where the tokens before it were counted by row."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, None if past and count == 1 else real)


@_learned("rasbt/reasoning-from-scratch#33")
class PositionsOfTheFirstRow(Learned):
    """Positions are counted once for the batch, in its first row."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, real)[:1]


@_long("Modalities/modalities#462")
class RatesInTheDtypeOfTheWeights(Long):
    """The rates are rounded to the dtype of the weights before positions multiply them."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        half, dtype = self.width // 2, self.keys[0].weight.dtype
        rates = 100.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = self.positions(where)[:, None, :, None] * rates.to(dtype).double()
        wide = torch.promote_types(dtype, torch.float32)
        return angles.cos().to(wide), angles.sin().to(wide)


@_distance("espnet/espnet#2684")
class ShiftedRowsRunIntoTheNext(Distance):
    """Rows of distances are shifted for a causal mask: later keys get the next query's farthest."""

    def penalty(self, distance: Tensor) -> Tensor:
        wrapped = distance.shape[-1] + 1 + distance
        shifted = wrapped.masked_fill(distance == -1, 0.0)
        return super().penalty(torch.where(distance < 0, shifted, distance))
