"""Right attention that adds up in one order, whatever else is in the call."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec

LAWS = (
    "batch_invariant",
    "chunk_invariant",
    "run_to_run",
    "thread_invariant",
)


class InOrder(nn.Module):
    """Scaled dot-product attention that adds up one feature and one key after another.

    Each element of the output is computed by the same operations in the same order, whatever else
    is in the call.
    """

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        """Output ``(..., L, Ev)``."""
        self.calls += 1
        scores = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
        for feature in range(query.shape[-1]):
            scores = scores + query[..., feature, None] * key[..., None, :, feature]
        scores = scores / math.sqrt(query.shape[-1])
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        top = scores.amax(-1, keepdim=True)
        powers = (scores - top.masked_fill(top == -math.inf, 0.0)).exp()
        total = torch.zeros_like(top)
        output = value.new_zeros(*query.shape[:-1], value.shape[-1])
        for slot in self.order(query, key):
            one = powers[..., slot, None]
            seen = torch.where(one > 0, value[..., None, slot, :], 0.0)
            total, output = total + one, output + one * seen
        return output / total.masked_fill(total == 0, 1.0)

    def order(self, query: Tensor, key: Tensor) -> range:
        """The order in which keys are added up."""
        return range(key.shape[-2])


IN_ORDER = MechanismSpec(
    name="in_order",
    make=InOrder,
    equal_sizes=True,
    dtypes=("float32", "float64"),
    laws=("pools_values", *LAWS),
)
