"""The sizes for which a module is made, and what arguments get by their roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Widths:
    """The sizes for which a module is made.

    Args:
        width: E, features of a hidden state.
        heads: number of heads.
        query, key, value: Eq, Ek and Ev, where they may differ; by default E.
        grid: rows and columns of an image or a window.
        dropout: the share of weights that training drops.
    """

    width: int = 16
    heads: int = 2
    query: int = 0
    key: int = 0
    value: int = 0
    grid: int = 3
    dropout: float = 0.0

    def of(self, role: str | None) -> tuple[Any, str] | None:
        """The value of a role, and the Python expression of ``size`` that gives it."""
        if role is None:
            return None
        if role in ("query", "key", "value") and getattr(self, role):
            return getattr(self, role), str(getattr(self, role))
        if role == "dropout":
            return self.dropout, repr(self.dropout)
        if role in _FIXED:
            return _FIXED[role], repr(_FIXED[role])
        if role not in VARIED:
            return None
        text = VARIED[role].replace("heads", str(self.heads))
        return eval(text, {"size": self.width, "nn": nn}), text  # noqa: S307  of the table


_FIXED: Mapping[str, Any] = {
    "length": 64,
    "kernel": 3,
    "stride": 1,
    "vocabulary": 32,
    "bias": False,
    "flag": False,
    "epsilon": 1e-5,
    "base": 10000.0,
    "scale": None,
    "layer": 0,
    "dtype": torch.float32,
    "device": "cpu",
    "implementation": "eager",
    "activation": "gelu",
}
VARIED: Mapping[str, str] = {
    **dict.fromkeys(("width", "query", "key", "value", "inner"), "size"),
    **dict.fromkeys(("heads", "kv_heads"), "heads"),
    "head_dim": "size // heads",
    "root": "(size // heads) ** 0.5",
    "feedforward": "2 * size",
    "batch": "8",
    "layers": "1",
    "norm": "nn.LayerNorm",
}
"""Roles whose default is replaced, so that a module can be made small, and at other sizes; or which
are given where the class refuses the default ``None``."""
LONGEST = 1024
"""Most tokens for which a module keeps room, in masks and caches that are copied with it."""
