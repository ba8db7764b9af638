"""What the judge measures candidates against, run in a cell of the same kind.

Each function takes ``(B, H, L, E)``, or ``(B, L, H, E)`` where the heads are ``turned``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

torch.empty(31 * 2**20, dtype=torch.uint8)  # or large temporaries are mapped anew at first


def empty(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    """Answer at once with anything of the right size: what a call costs besides attention."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def fused(query: Tensor, key: Tensor, value: Tensor, turned: bool = False, **given: Any) -> Tensor:
    """Torch's fused attention."""
    query, key, value = (t.transpose(1, 2) if turned else t for t in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, **given)
    return output.transpose(1, 2) if turned else output


def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A matrix product, whose rate no attention exceeds."""
    return query @ key
