"""Outputs of timed calls, kept for comparison after the clock has stopped.

Of each slot, the output of one call, the last or any other, may be compared with that of the same
call on copies of its inputs; the fewer calls a slot has, the less often. This module also checks
the type of an output, its memory, and whether it still has the values that the call returned. The
caller checks whether the kept values are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SIZE = 6
"""Number of samples that are kept."""
_REPEAT_CALLS = 8
"""One call in this many is repeated; a slot with fewer calls has one with that probability."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Allowed difference of two outputs of equal calls, over the largest value; orders of sums may
differ."""
_GRADIENTS = 10.0
"""The same for gradients, as a multiple: they are sums over queries or keys that may cancel."""


@dataclass(frozen=True)
class Sample:
    """A timed call."""

    inputs: Any
    output: Any
    copies: tuple[Tensor, ...]

    @property
    def changed(self) -> bool:
        """Whether the output has changed since the call returned."""
        return any(
            not torch.equal(torch.nan_to_num(now), torch.nan_to_num(then))
            for now, then in zip(tensors_of(self.output), self.copies, strict=True)
        )


class Samples:
    """Samples of the calls of a timer, drawn from all slots so far.

    Args:
        repeat: repeats a call on the copy of its inputs.
    """

    def __init__(self, repeat: Callable[[Any], Any]) -> None:
        self._repeat = repeat
        self._chance = random.SystemRandom()
        self._seen = 0
        self.items: list[Sample] = []
        self.fault = ""

    def add(
        self, output: Any, inputs_of: Any, calls: int = _REPEAT_CALLS, *, rewrites: bool = False
    ) -> None:
        """Check an output right after its slot, and keep it with some probability.

        Args:
            output: what that call returned.
            inputs_of: function that returns the inputs of that call and a copy of them.
            calls: number of calls in the slot.
            rewrites: whether the next slot writes the same output.
        """
        self._seen += 1
        place = self._chance.randrange(self._seen)
        is_repeated = self._chance.randrange(_REPEAT_CALLS) < calls
        if place >= _SIZE and not is_repeated:
            return
        copies = copies_of(output)
        inputs, copy = inputs_of()
        self.fault = self.fault or fault_of(output, inputs)
        sample = Sample(copy, copies if rewrites else output, copies)
        if is_repeated:
            found = difference(copies, tensors_of(self._repeat(copy)))
            fault = CHANGED if sample.changed else DIFFERS.format(found) if found else ""
            self.fault = self.fault or fault
        if place >= _SIZE:
            return
        if len(self.items) < _SIZE:
            self.items.append(sample)
        else:
            old = self.items[place]
            self.fault = self.fault or (CHANGED if old.changed else "")
            self.items[place] = sample

    def form_fault(self) -> str:
        """What is wrong with the form of any output, in words; empty if nothing is."""
        return self.fault or (CHANGED if any(sample.changed for sample in self.items) else "")


DIFFERS = (
    "a result of a timed call {}, from that of the same call on copies of its inputs: it depends "
    "on earlier calls or on being timed"
)
CHANGED = (
    "an output of a timed call changed after the call had returned: it was not complete, or its "
    "memory is that of another call's output"
)


def fault_of(output: Any, inputs: Any) -> str:
    """What is wrong with the form of an output, in words; empty if nothing is."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(inputs)}
    for tensor in tensors_of(output):
        if type(tensor) is not Tensor:
            return f"a timed call returned a {type(tensor).__name__}, not a plain torch.Tensor"
        if tensor.numel() and tensor.untyped_storage().data_ptr() in storages:
            return "the output of a timed call shares memory with an input"
    return ""


def difference(results: Sequence[Tensor], targets: Sequence[Tensor]) -> str:
    """How the results of two equal calls differ, in words; empty if they do not.

    Args:
        results, targets: an output alone, or the gradients of a call.
    """
    factor = 1.0 if len(targets) == 1 else _GRADIENTS
    for result, target in zip(results, targets, strict=True):
        if (result.shape, result.dtype) != (target.shape, target.dtype):
            kinds = (f"{tuple(one.shape)} in {one.dtype}" for one in (result, target))
            return "is {}, and was {}".format(*kinds)
        if not target.numel():
            continue
        size = float(target.detach().double().abs().max())
        error = float((result.detach().double() - target.detach().double()).abs().max())
        if not error <= factor * TOLERANCES.get(target.dtype, 0.0) * size:
            return f"differs by up to {error:.3g}, of values up to {size:.3g}"
    return ""


def copies_of(output: Any) -> tuple[Tensor, ...]:
    """Copies of the tensors of an output, as they are now."""
    return tuple(tensor.detach().clone() for tensor in tensors_of(output))


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a result: an output alone, or gradients, some of which may be missing."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for tensor in value if isinstance(tensor, Tensor)]
