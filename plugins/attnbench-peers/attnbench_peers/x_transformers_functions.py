"""x-transformers: its attention function."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench.adapters import sdpa
from attnbench_peers.library import LIBRARIES


def _attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    from x_transformers.attend import Attend

    if attn_mask is not None:  # of two dimensions, it would be one of keys
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    output: Tensor = Attend()(query, key, value, mask=attn_mask)[0]
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``Attend``."""
    if LIBRARIES["x-transformers"].installed:
        yield sdpa(
            _attend,
            name="x_transformers_attend",
            conventions={
                "masks": ("boolean",),
                "hidden_slots": "finite",
                "internal_dtype": "float32",  # of the softmax
            },
        )
