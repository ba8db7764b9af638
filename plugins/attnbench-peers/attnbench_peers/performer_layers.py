"""performer-pytorch: attention by random features."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers"]

LAYERS: dict[str, dict[str, Any]] = {
    "performer": {},
    "performer_generalized": {"generalized_attention": True},
    "performer_local": {"local_heads": 2, "local_window_size": 4},
}


class _Performer(nn.Module):
    """``SelfAttention``, whose forward hands its keywords on unseen."""

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__()
        from performer_pytorch import SelfAttention

        self.attention = SelfAttention(size, heads=2, dim_head=4, **options)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.attention(hidden, mask=mask)
        return output


def _even(size: int) -> int:
    return -(-size // 2) * 2


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """``SelfAttention`` with softmax features, and with generalised ones."""
    if not LIBRARIES["performer-pytorch"].installed:
        return
    for name, options in LAYERS.items():
        dtypes = ("float32", "float64") if name == "performer_local" else None  # local-attention's
        make = partial(_Performer, **options)
        yield layer(make, name=name, sizes=_even, mask="mask", dtypes=dtypes)
