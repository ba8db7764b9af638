"""Layers of small libraries, in one table: the class of each, and the mask that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers"]

HEADS = {"heads": 2, "dim_head": 8}

LAYERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # name: distribution, class, options beside the size, what the adapter is told
    "conformer_block": (
        "conformer",
        "conformer:ConformerBlock",
        {**HEADS, "conv_kernel_size": 3},
        {"mask": "mask"},
    ),
    "fast_transformer": (
        "fast-transformer-pytorch",
        "fast_transformer_pytorch.fast_transformer_pytorch:FastAttention",
        HEADS,
        {"mask": "mask"},
    ),
    "linear_attention_transformer": (
        "linear-attention-transformer",
        "linear_attention_transformer:LinearAttentionTransformer",
        {"depth": 1, "max_seq_len": 1024, "heads": 2, "dim_head": 8, "shift_tokens": True},
        {"mask": "input_mask"},
    ),
    "mega_normed": (
        "mega-pytorch",
        "mega_pytorch:MegaLayer",
        {"ema_heads": 2, "attn_dim_qk": 8, "attn_dim_value": 16, "norm_mhesa_heads": True},
        {"mask": None, "causal": True, "dtypes": ("float32", "float64")},  # Fourier transforms
    ),
    "memory_efficient": (
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch:Attention",
        {**HEADS, "memory_efficient": True, "q_bucket_size": 4, "k_bucket_size": 4},
        {"mask": "mask"},
    ),
    "memory_efficient_flash": (
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch:FlashAttention",
        {**HEADS, "q_bucket_size": 4, "k_bucket_size": 4},
        {"mask": "mask"},
    ),
    "mixture_of_attention": (
        "mixture-of-attention",
        "mixture_of_attention.mixture_of_attention:Attention",
        HEADS,
        {"mask": "mask"},
    ),
}


class _Named(nn.Module):
    """A layer that hands its keywords on unseen, with the mask under the name that it looks for."""

    def __init__(self, address: str, mask: str | None, size: int, **options: Any) -> None:
        super().__init__()
        module, _, name = address.partition(":")
        self.layer = getattr(import_module(module), name)(dim=size, **options)
        self.name = mask

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        given = {} if mask is None or self.name is None else {self.name: mask}
        output: Tensor = self.layer(hidden, **given)
        return output


def _three(size: int) -> int:
    return max(3, -(-size // 2) * 2)


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """Those of the libraries that are installed."""
    for name, (library, address, options, told) in LAYERS.items():
        if LIBRARIES[library].installed:
            make = partial(_Named, address, told["mask"], **options)
            known = {**told, "mask": "mask" if told["mask"] else None}
            yield layer(make, name=name, sizes=_three, **known)
