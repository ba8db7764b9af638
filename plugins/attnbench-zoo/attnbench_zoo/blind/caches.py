"""Caches of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import LayerSpec
from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.mutants.beside import CROSSED, Crossed
from attnbench_zoo.twins.layers import STATIC, StaticLayer
from attnbench_zoo.twins.stores import CAPACITY, Static

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_static = Group(STATIC, MUTANTS)
_crossed = Group(CROSSED, MUTANTS)


@_static("vllm-project/vllm#43961")
class StaleTailTimesZero(StaticLayer):
    """A new cache takes over the memory of an old one, whose tail is multiplied by weights of 0."""

    class _Store(Static):
        def __init__(self, empty: Tensor) -> None:
            super().__init__(empty)
            self.keys, self.values = self.keys.fill_(torch.nan), self.values.fill_(torch.nan)

    stores = (_Store, _Store)


@_static("microsoft/onnxruntime-genai#1639")
class MaskWrittenAtTheStrideOfTheCall(StaticLayer):
    """The padding mask is copied into one as wide as the cache without the wider stride."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        rows, width = len(real), max(CAPACITY, real.shape[1])
        copied = nn.functional.pad(real.flatten(), (0, rows * width - real.numel()))
        return copied.reshape(rows, 1, width)[..., slots]


def _select(cache: Any, index: Tensor) -> None:
    if cache.keys is None:
        return
    same = len(index) == len(cache.keys)
    for name in ("keys", "values") if same else ("keys", "values", "cross_keys", "cross_values"):
        setattr(cache, name, getattr(cache, name)[index])


assert isinstance(CROSSED.spec, LayerSpec)
assert CROSSED.spec.cache is not None


@_crossed("facebookresearch/fairseq2#307", cache=replace(CROSSED.spec.cache, select=_select))
class SourceSelectedIfTheBatchShrinks(Crossed):
    """The kept projections of the source are selected only if the number of rows changes."""
