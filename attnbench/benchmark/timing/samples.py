"""Outputs of timed calls, kept to be looked at when the clock has stopped.

Of each slot the output of one call, the last one or any other, is compared with that of the same
call on copies of its inputs; of a slot of few calls, sometimes. What an output is, where it lies,
and whether it still holds what it held when the call returned, is found out here, too; whether the
values of those that are kept are right is for the caller to find out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_KEPT = 6
"""Samples that are kept."""
_REPEATED = 8
"""Calls for which one is repeated; of a slot with fewer, one is repeated as often as that."""
_LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""Allowed difference of the results of two equal calls, over the largest value."""


@dataclass(frozen=True)
class Sample:
    """A timed call."""

    inputs: Any
    output: Any
    copies: tuple[Tensor, ...]

    @property
    def changed(self) -> bool:
        """Whether the output holds other values than when the call had returned."""
        return any(
            not torch.equal(torch.nan_to_num(now), torch.nan_to_num(then))
            for now, then in zip(_tensors(self.output), self.copies, strict=True)
        )


class Samples:
    """Samples of the calls of a timer: at any time, some of all slots so far.

    Args:
        repeat: makes a call again, with the copy of its inputs.
    """

    def __init__(self, repeat: Callable[[Any], Any] | None = None) -> None:
        self._repeat = repeat
        self._chance = random.SystemRandom()
        self._seen = 0
        self.kept: list[Sample] = []
        self.fault = ""

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.kept)

    def choose(self, calls: int) -> int:
        """The number of the call of a slot whose output is kept."""
        return calls - 1 if self._chance.random() < 0.5 else self._chance.randrange(calls)

    def add(self, output: Any, given: Any, calls: int = _REPEATED) -> None:
        """Look at an output right after its slot, and keep it with some probability.

        Args:
            output: what the chosen call returned.
            given: function that returns the inputs of that call and a copy of them.
            calls: number of calls in the slot.
        """
        self._seen += 1
        place = self._chance.randrange(self._seen)
        repeated = self._repeat is not None and self._chance.randrange(_REPEATED) < calls
        if place >= _KEPT and not repeated:
            return
        copies = tuple(tensor.detach().clone() for tensor in _tensors(output))
        inputs, own = given()
        self.fault = self.fault or fault_of(output, inputs)
        sample = Sample(own, output, copies)
        if repeated and self._repeat is not None:
            again = _tensors(self._repeat(own))
            changed = CHANGED if sample.changed else ""
            self.fault = self.fault or changed or _difference(copies, again)
        if place >= _KEPT:
            return
        if len(self.kept) < _KEPT:
            self.kept.append(sample)
        else:
            left = self.kept[place]
            self.fault = self.fault or (CHANGED if left.changed else "")
            self.kept[place] = sample

    def form_fault(self) -> str:
        """What is wrong with the form of any output, in words; empty if nothing is."""
        return self.fault or (CHANGED if any(sample.changed for sample in self.kept) else "")


CHANGED = (
    "an output of a timed call changed after the call had returned: it was not complete, or its "
    "memory is that of another call's output"
)


def fault_of(output: Any, inputs: Any) -> str:
    """What is wrong with the form of an output, in words; empty if nothing is."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors(inputs)}
    for tensor in _tensors(output):
        if type(tensor) is not Tensor:
            return f"a timed call returned a {type(tensor).__name__}, not a plain torch.Tensor"
        if tensor.numel() and tensor.untyped_storage().data_ptr() in memory:
            return "the output of a timed call shares memory with an input"
    return ""


def _difference(then: Sequence[Tensor], now: Sequence[Tensor]) -> str:
    """How the results of two equal calls differ, in words; empty if they do not."""
    for timed, again in zip(then, now, strict=True):
        if not again.numel():
            continue
        size = float(again.detach().double().abs().max())
        off = float((timed.double() - again.detach().double()).abs().max())
        if not off <= _LOOSE.get(again.dtype, 0.0) * size:
            return (
                f"a result of a timed call differs by up to {off:.3g} from that of the same call "
                "on copies of its inputs: it depends on earlier calls or on being timed"
            )
    return ""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for tensor in value if isinstance(tensor, Tensor)]
