"""Keras: its attention function and layers, on its torch backend."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import flash, layer
from attnbench_peers.library import LIBRARIES

OWN_DTYPE = {"autocast_agrees": "a layer of Keras computes in the dtype that it was made with"}
INSTALLED = LIBRARIES["keras"].installed is not None


def _keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    return keras


def _dot_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    function = _keras().ops.dot_product_attention
    found: Tensor = function(q, k, v, mask=mask, scale=scale, is_causal=causal)
    return found


class _Layer(nn.Module):
    """A Keras layer on hidden states; it is built on its first call, here on a made-up one."""

    def __init__(self, size: int, kind: str, **options: Any) -> None:
        super().__init__()
        keras = _keras()
        keras.utils.set_random_seed(int(torch.randint(2**31, ())))
        self.layer = getattr(keras.layers, kind)(name="attention", **options)  # numbered otherwise
        self.layer(*[keras.ops.zeros((1, 1, size))] * 2)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        found: Tensor = self.layer(hidden, hidden, value_mask=mask, training=self.training)
        return found


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``keras.ops.dot_product_attention``."""
    if INSTALLED:
        conventions = {"masks": ("boolean",), "hidden_slots": "finite", "empty_rows": "mean"}
        yield flash(
            _dot_product,
            name="keras_dot_product",
            dtypes=("float32", "float16", "bfloat16"),  # it computes float64 in float32
            conventions={**conventions, "causal": "top_left"},
        )


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """``MultiHeadAttention`` and ``GroupQueryAttention``."""
    if not INSTALLED:
        return
    grouped = {"head_dim": 4, "num_query_heads": 4, "num_key_value_heads": 2}
    for name, kind, options in (
        ("keras_multi_head", "MultiHeadAttention", {"num_heads": 2, "key_dim": 4}),
        (
            "keras_multi_head_gated",
            "MultiHeadAttention",
            {"num_heads": 2, "key_dim": 4, "use_gate": True},
        ),
        ("keras_grouped", "GroupQueryAttention", grouped),
        ("keras_grouped_window", "GroupQueryAttention", {**grouped, "sliding_window": 3}),
    ):
        make = partial(_Layer, kind=kind, **options)
        yield layer(make, name=name, mask="mask", dtypes=("float32",), exempt=OWN_DTYPE)
