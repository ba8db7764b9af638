"""local-attention: its multi-head layer, by window and by direction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers"]

DTYPES = ("float32", "float64")  # half types raise: rotary angles make the weights float32


def _local(size: int, **options: Any) -> nn.Module:
    from local_attention.transformer import LocalMHA

    made: nn.Module = LocalMHA(dim=size, window_size=4, heads=2, dim_head=4, **options)
    return made


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """``LocalMHA``."""
    if not LIBRARIES["local-attention"].installed:
        return
    known: dict[str, Any] = {"mask": "mask", "cache_name": None, "dtypes": DTYPES}
    yield layer(lambda size: _local(size), name="local_attention", **known)
    yield layer(
        lambda size: _local(size, causal=True),
        name="local_attention_causal",
        causal=True,
        window=5,
        **known,
    )
