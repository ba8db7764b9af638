"""Small changes of what a call with a cache, or with padding, computes that make it right."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.invariants.toolkit.layer_faults import told_once
from attnbench.invariants.toolkit.repairs import repair
from attnbench.subject.layer import LayerSubject

_PADDED = 3


@told_once
def repaired_call(subject: LayerSubject, past: int) -> str:
    """A sentence on a change with which the call behind some tokens is right; empty if unknown.

    Args:
        subject: a layer with a cache.
        past: the number of tokens in the cache, which one call has left there.
    """
    caches: dict[int, Any] = {}

    def expected(layer: LayerCase) -> Tensor:
        cache = subject.new_cache(layer.module, len(layer.hidden))
        if past:
            _, cache = subject.call(layer.module, layer.hidden[:, :past], None, cache)
        caches[id(layer)] = cache
        return layer.run(layer.hidden)[:, past:]

    def call(layer: LayerCase) -> Tensor:
        cache = copy.deepcopy(caches[id(layer)])
        return subject.call(layer.module, layer.hidden[:, past:], None, cache)[0]

    where = "a call behind another one" if past else "a first call with a cache"
    with torch.no_grad():
        shifts = {"goes on behind the tokens that are cached": past} if past else {}
        return repair(subject, expected, call, f"{where} is right", shifts)[1]


@told_once
def repaired_padding(subject: LayerSubject, past: int = 0) -> str:
    """A sentence on a change with which an item padded at the left is right; empty if unknown.

    Args:
        subject: a layer.
        past: the number of slots, padded ones too, that one call has left in a cache; 0 for none.
    """
    caches: dict[int, Any] = {}

    def mask(layer: LayerCase, count: int) -> Tensor:
        return (torch.arange(count, device=layer.hidden.device) >= _PADDED)[None]

    def call(layer: LayerCase) -> Tensor:
        hidden, masked = layer.hidden, mask(layer, layer.hidden.shape[1])
        if not past:
            return layer.run(hidden, masked)[:, _PADDED:]
        cache = copy.deepcopy(caches[id(layer)])
        return subject.call(layer.module, hidden[:, past:], masked, cache)[0]

    def alone(layer: LayerCase) -> Tensor:
        if past:
            cache, first = subject.new_cache(layer.module, len(layer.hidden)), mask(layer, past)
            given = layer.hidden[:, :past], first, cache
            caches[id(layer)] = subject.call(layer.module, *given)[1]
        return layer.run(layer.hidden[:, _PADDED:])[:, max(0, past - _PADDED) :]

    what = f"with {_PADDED} padded tokens it is right"
    if past:
        what = f"behind a call on {past} slots, the first {_PADDED} padded, the next one is right"
    with torch.no_grad():
        shifts = {"is counted from the first real token": -_PADDED}
        return repair(subject, alone, call, what, shifts)[1]
