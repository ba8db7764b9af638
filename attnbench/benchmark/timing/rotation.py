"""Fresh values for every timed call, at the cost of one copy of the inputs a slot.

Each input is a window of a pool that is a little larger. The windows of the calls of a slot begin
at different rows, so that no two calls have the same values; all overlap, so that the processor's
caches stay as warm as if it were the same tensor. Before each slot the rows of the pool move, with
the versions of the tensors unchanged, so that results cached by address become wrong. The values
come from the system's randomness, not from the seed of the case.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_PLACES = 128
"""Windows of a pool; further calls of a slot use other combinations of the inputs' windows."""
_ALIGNED = 64
"""Windows begin at multiples of this many bytes, as the allocator's blocks do."""


class FreshCall:
    """A timed call whose inputs have other values every time.

    Args:
        run: function that is timed.
        tensors: the tensors to vary; windows are contiguous, whatever their layout.
        build: makes the argument of ``run`` of such tensors, before the clock starts.
        leaves: whether the tensors require gradients.
    """

    size = 1
    """Calls that are made as one."""
    appends = False
    """Whether each call lengthens a cache."""
    rewrites = False
    """Whether each call writes its output where the one before it did."""

    def __init__(
        self,
        run: Callable[[Any], Any],
        tensors: Sequence[Tensor],
        build: Callable[[Sequence[Tensor]], Any],
        leaves: bool = False,
    ) -> None:
        self.repeat, self._build, self._leaves = run, build, leaves
        self._chance = random.SystemRandom()
        self._pools = [_Pool(tensor, self._chance) for tensor in tensors]
        self.tensors = tensors
        self._turns: list[tuple[Sequence[Tensor], Any]] = []
        self._next: Iterator[tuple[Sequence[Tensor], Any]] = iter(())

    def _turn(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Any]:
        if self._leaves:
            tensors = [tensor.detach().requires_grad_() for tensor in tensors]
        return tensors, self._build(tensors)

    def prepare(self, calls: int) -> None:
        """Give each of the next calls inputs of its own; those of earlier calls change."""
        self.refresh()
        order = self._chance.sample(range(_PLACES), _PLACES)
        self._turns = [
            self._turn(
                [
                    pool.window(order[(call + number * (call // _PLACES)) % _PLACES])
                    for number, pool in enumerate(self._pools)
                ]
            )
            for call in range(calls)
        ]
        self._next = iter(self._turns)

    def on(self, number: int) -> Any:
        """Make one of the prepared calls."""
        return self.repeat(self._turns[number][1])

    def refresh(self) -> None:
        """Change the values of all inputs where they are, and not the versions torch counts."""
        for pool in self._pools:
            pool.roll(self._chance)

    def inputs_of(self, number: int) -> tuple[Sequence[Tensor], Any]:
        """The tensors of a call since :meth:`prepare`, and a copy of its argument."""
        tensors = self._turns[number][0]
        return tensors, self._turn([tensor.detach().clone() for tensor in tensors])[1]

    def move(self) -> None:
        """With probability 1/2, move the inputs to other places in memory."""
        if self._chance.random() < 0.5:
            for pool in self._pools:
                pool.place = pool.place.clone()

    def __call__(self) -> Any:
        """Make the call on the next inputs, or on the first ones if none are prepared."""
        turn = next(self._next, None)
        return self.repeat((turn or self._turn(self.tensors))[1])


class _Pool:
    """The rows of a tensor, and further rows with the same distribution."""

    def __init__(self, tensor: Tensor, chance: random.Random) -> None:
        self._shape = tensor.shape
        row = max(1, tensor.shape[-1])
        self._step = math.lcm(row * tensor.element_size(), _ALIGNED) // tensor.element_size()
        flat = tensor.detach().reshape(-1)
        generator = torch.Generator().manual_seed(chance.getrandbits(48))
        tail = torch.randn((_PLACES - 1) * self._step, generator=generator)
        values = flat.float()
        scale = values.std() if values.numel() > 1 else values.abs().sum()
        tail = tail.to(flat.device) * scale.nan_to_num(1.0) + values.mean().nan_to_num(0.0)
        self._rows = torch.cat([flat, tail.to(flat.dtype)])
        self._row = row
        self.place = self._rows.clone()

    def roll(self, chance: random.Random) -> None:
        shift = self._row * chance.randrange(max(1, len(self._rows) // self._row))
        place = self.place.data  # has a version of its own
        place[shift:] = self._rows[: len(self._rows) - shift]
        place[:shift] = self._rows[len(self._rows) - shift :]

    def window(self, number: int) -> Tensor:
        start = number * self._step
        return self.place[start : start + self._shape.numel()].view(self._shape)
