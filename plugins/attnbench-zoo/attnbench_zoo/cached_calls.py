"""Calls of a layer with a cache, by which a mutant is told from its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.entries import Built

__all__ = ["CACHED"]


def _parts(*ends: int) -> Callable[[Built], list[Tensor]]:
    """The sequence cut before these positions."""

    def run(built: Built) -> list[Tensor]:
        cache = _new(built)
        return [_step(built, cache, *part) for part in zip((0, *ends), (*ends, 12), strict=True)]

    return run


def _one_by_one(built: Built) -> list[Tensor]:
    return _parts(*range(1, 12))(built)


def _cropped(built: Built) -> list[Tensor]:
    """Crop, and go on with other tokens than those that were there."""
    cache = _new(built)
    _step(built, cache, 0, 9)
    cache = _settled(_cache_spec(built).crop, cache, 5)
    return [_step(built, cache, 9, 11), _length(built, cache)]


def _selected(built: Built) -> list[Tensor]:
    """Rows turned round, as a beam search does."""
    cache = _new(built)
    _step(built, cache, 0, 7)
    rows = torch.arange(len(built.tensors[0])).flip(0)
    cache = _settled(_cache_spec(built).select, cache, rows)
    return [_step(built, cache, 7, 9, rows), _length(built, cache)]


def _two_caches(built: Built) -> list[Tensor]:
    """One cache, while another one is filled."""
    first, second = _new(built), _new(built)
    _step(built, first, 0, 6)
    _step(built, second, 3, 12)
    return [_step(built, first, 6, 8), _length(built, first)]


CACHED = {
    "a cache, two calls": _parts(6),
    "a cache, token by token": _one_by_one,
    "a cache, calls of 1, 9 and 2": _parts(1, 10),
    "a cache, cropped": _cropped,
    "a cache, rows selected": _selected,
    "two caches": _two_caches,
}
"""Runs of twelve tokens, by what a caller does."""


def _cache_spec(built: Built) -> Any:
    if built.spec.cache is None:
        raise NotImplementedError("it has no cache")
    return built.spec.cache


def _new(built: Built) -> Any:
    return _cache_spec(built).new(built.module, len(built.tensors[0]))


def _length(built: Built, cache: Any) -> Tensor:
    length = _cache_spec(built).length
    return torch.tensor(float(length(cache)) if length else 0.0)


def _settled(operation: Any, cache: Any, argument: Any) -> Any:
    if operation is None:
        raise NotImplementedError("its cache has no such operation")
    given = operation(cache, argument)
    return cache if given is None else given


def _step(built: Built, cache: Any, start: int, end: int, rows: Tensor | None = None) -> Tensor:
    """The output of some tokens, zeros at padding."""
    hidden = built.tensors[0][:, start:end]
    given: dict[str, Any] = {"cache": cache}
    mask = getattr(built.inputs, "padding_mask", None)
    hidden = hidden if rows is None else hidden[rows]
    if mask is not None:
        mask = mask if rows is None else mask[rows]
        given["padding_mask"] = mask[:, :end]
    result = built.module(hidden, **given)
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output if mask is None else output.masked_fill(~mask[:, start:end, None], 0.0)
