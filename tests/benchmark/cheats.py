"""Attention that is fast only for a benchmark, and the right one."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def right(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value)


def remembering_addresses() -> Attention:
    memo: dict[Any, Tensor] = {}

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        place = tuple((t.data_ptr(), t._version, t.dtype) for t in (query, key, value))
        if place not in memo:
            memo[place] = right(query, key, value)
        return memo[place].clone()

    return call


def reusing_a_buffer() -> Attention:
    buffers: dict[Any, Tensor] = {}

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        place = (query.dtype, query.shape)  # adapters make small calls first
        return buffers.setdefault(place, torch.empty_like(query)).copy_(right(query, key, value))

    return call


def filling_it_later() -> Attention:
    calls: list[int] = []

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.zeros_like(query)

        def fill() -> None:
            time.sleep(0.02)
            with torch.no_grad():
                out.copy_(right(query, key, value))

        calls.append(0)
        if len(calls) < 20 or query.shape[-2] < 64:
            return right(query, key, value)
        threading.Thread(target=fill, daemon=True).start()
        return out

    return call


class Lazy(torch.Tensor):
    """Computes when it is read."""


def lazy() -> Attention:
    return lambda query, key, value: right(query, key, value).as_subclass(Lazy)


def rounding() -> Attention:
    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.dtype == torch.float64:
            return right(query, key, value)
        return right(query.half(), key.half(), value.half()).to(query.dtype)

    return call


def made_by(*names: str) -> list[dict[str, Any]]:
    """The variables of the functions of these names that are being run."""
    frame: Any = sys._getframe()
    told = []
    while frame is not None:
        told += [frame.f_locals] if frame.f_code.co_name in names else []
        frame = frame.f_back
    return told


def computing_the_last_call_of_a_slot() -> Attention:
    """Computes nothing in calls after which, as a frame above says, others follow."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for told in made_by("_made"):
            if told.get("number") != told["calls"] - 1:
                return torch.zeros_like(query)
        return right(query, key, value)

    return call


def computing_the_rows_that_are_looked_at() -> Attention:
    """Knows that 64 rows are compared of an untimed output, and two of each timed item."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = query.shape[-2]
        if rows < 64:
            return right(query, key, value)
        chosen = {round(i * (rows - 1) / (n - 1)) for n in (2, 4, 16, 32, 64) for i in range(n)}
        out = torch.zeros_like(query)
        out[..., sorted(chosen), :] = right(query[..., sorted(chosen), :], key, value)
        return out

    return call


def remembering_after_a_while() -> Attention:
    """From the twentieth call on, each gives the last result of its shape."""
    kept: dict[Any, Tensor] = {}
    calls: list[int] = []

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(0)
        place = (query.dtype, query.shape)
        if place not in kept or len(calls) < 20:
            kept[place] = right(query, key, value)
        return kept[place].clone()

    return call


def patching_the_reference() -> Attention:
    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for thing in gc.get_objects():
            if type(thing).__name__ == "Invariant":
                object.__setattr__(thing, "check", lambda *args, **kwargs: None)
        return torch.zeros_like(query)

    return call


TIMED = "a timed call"
CHEATS = {
    reusing_a_buffer: "an output of a timed call changed after the call had returned",
    filling_it_later: TIMED,
    lazy: "a timed call returned a Lazy, not a plain torch.Tensor",
    rounding: "off the float64 reference",
    computing_the_last_call_of_a_slot: TIMED,
    computing_the_rows_that_are_looked_at: TIMED,
    remembering_after_a_while: "of a timed call",
    patching_the_reference: "off the float64 reference",
}
"""What makes each, and what is said of it."""
