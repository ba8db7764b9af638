"""PyTorch Geometric: attention over the nodes of padded graphs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers"]


def _attention(name: str, size: int) -> nn.Module:
    import torch_geometric.nn.attention as attention

    made: nn.Module = getattr(attention, name)(size, heads=2, head_channels=size // 2)
    return made


def _set(size: int) -> nn.Module:
    from torch_geometric.nn.aggr.utils import SetAttentionBlock

    made: nn.Module = SetAttentionBlock(size, heads=2)
    return made


def _legal(size: int) -> int:
    return max(4, -(-size // 4) * 4)


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """Performer's, Polynormer's, SGFormer's and Set Transformer's attention."""
    if not LIBRARIES["torch-geometric"].installed:
        return
    for kind in ("Performer", "Polynormer"):
        make = partial(_attention, f"{kind}Attention")
        name = f"torch_geometric_{kind.lower()}"
        yield layer(make, name=name, sizes=_legal, mask="mask", dtypes=("float32", "float64"))
    yield layer(_set, name="torch_geometric_set", sizes=_legal, mask="mask")
