"""Other rates, positions and orders of features than those that a layer computes with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

_RATES: dict[str, Callable[[Tensor], Tensor]] = {
    "falls twice as fast, as over half as many features": lambda rates: rates**2,
    "falls half as fast, as over twice as many features": lambda rates: rates**0.5,
    "falls four times as fast, as over a fourth of the features": lambda rates: rates**4,
    "falls a fourth as fast, as over four times as many features": lambda rates: rates**0.25,
    "starts at its second number": lambda rates: rates * (rates[1] / rates[0]),
    "is in the opposite order": lambda rates: rates.flip(0),
    "is replaced by 1 / itself": lambda rates: 1 / rates,
}
_POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "is one higher": lambda places: places + 1,
    "is one lower": lambda places: places - 1,
    "is counted from the end": lambda places: places.flip(-1),
    "is counted from 0": lambda places: places - places[..., :1],
}


def series(tensor: Tensor, shifts: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield other series where a tensor is one of rates, or of positions in each row."""
    if not tensor.dim() or tensor.shape[-1] < 2 or not tensor.numel():
        return
    values = tensor.double()
    if tensor.dim() == 1 and tensor.is_floating_point() and bool((values > 0).all()):
        falls = values[1:] / values[:-1]
        if float(falls[0]) < 1 and bool((falls - falls[0]).abs().amax() < 1e-5):
            for change, other in _RATES.items():
                yield change, other(tensor)
    if bool((values.diff() == 1).all()):
        for change, other in _POSITIONS.items():
            yield change, other(tensor)
        for change, shift in shifts.items():
            yield change, (tensor + shift).clamp(min=0)


def reordered(count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield orders of features in words, each as the number of the feature in every place."""
    numbers = torch.arange(count)
    for parts in (2, 3):
        blocks = numbers.reshape(parts, -1) if count % parts == 0 else numbers[:0]
        for order in itertools.permutations(range(parts)) if len(blocks) else ():
            if order != tuple(range(parts)):
                words = ", ".join(str(n + 1) for n in order)
                yield f"in blocks of the order {words}", blocks[list(order)].flatten()
    for groups, kinds in itertools.product(range(2, count), range(2, count)):
        if count % (groups * kinds):
            continue
        each, text = numbers.reshape(groups, kinds, -1), f"{groups} groups of {kinds} parts"
        turned = f"as {kinds} groups of {groups} parts instead of {text}"
        if groups == kinds:
            turned = f"with rows and columns of {groups} x {groups} parts exchanged"
        yield turned, each.transpose(0, 1).flatten()
        if kinds > 3:  # several queries for each key and value
            blocks = torch.cat([part.flatten() for part in torch.split(each, [kinds - 2, 1, 1], 1)])
            three = f"3 blocks, of {groups * (kinds - 2)}, {groups} and {groups} parts"
            yield f"as {three}, instead of {text}", blocks
            yield f"as {text} instead of {three}", blocks.argsort()
