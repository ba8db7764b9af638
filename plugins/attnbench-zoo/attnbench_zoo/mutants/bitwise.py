"""Mistakes that show in the last bits only: sums whose order follows the shape of the call."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench_zoo.base import Group, Mutant, Twin

__all__ = ["IN_ORDER", "MUTANTS", "InOrder"]

MUTANTS: list[Mutant] = []

LAWS = (
    "batch_invariant",
    "position_in_batch_invariant",
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


def _turned(key: Tensor) -> range:
    return range(key.shape[-2] - 1, -1, -1)


IN_ORDER = Twin(
    "in_order",
    MechanismSpec(
        name="in_order",
        make=InOrder,
        equal_sizes=True,
        dtypes=("float32", "float64"),
        laws=("pools_values", *LAWS),
    ),
)
mutant = Group(IN_ORDER, MUTANTS)


@mutant("batch_invariant_ops#6", "vllm#45819", killers=("batch_invariant",))
class KeysAreSplitForABatchOfOne(InOrder):
    """With one item there is room to split the keys, so they are added up in another order."""

    def order(self, query: Tensor, key: Tensor) -> range:
        """The order in which keys are added up."""
        alone = query.dim() > 2 and query.shape[0] == 1
        return _turned(key) if alone else super().order(query, key)


@mutant("own", killers=("chunk_invariant",))
class OneQueryIsADecodeKernel(InOrder):
    """A single query goes to another kernel, which adds up the keys in another order."""

    def order(self, query: Tensor, key: Tensor) -> range:
        """The order in which keys are added up."""
        return _turned(key) if query.shape[-2] == 1 else super().order(query, key)


@mutant("own", killers=("run_to_run",))
class PartialSumsComeAsTheyFinish(InOrder):
    """Partial sums are added in the order in which they finish, which differs from run to run."""

    def order(self, query: Tensor, key: Tensor) -> range:
        """The order in which keys are added up."""
        return _turned(key) if self.calls % 2 else super().order(query, key)


@mutant("own", killers=("thread_invariant",))
class ThreadsShareOutTheKeys(InOrder):
    """Each thread adds up a share of the keys, so that the order follows their number."""

    def order(self, query: Tensor, key: Tensor) -> range:
        """The order in which keys are added up."""
        return _turned(key) if torch.get_num_threads() > 1 else super().order(query, key)


@mutant("own", killers=("position_in_batch_invariant",))
class TheLastItemIsAnEdgeCase(InOrder):
    """The last item of a batch is handled by an epilogue that adds up in another order."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        """Output ``(..., L, Ev)``."""
        whole = super().forward(query, key, value, attn_mask)
        if query.dim() < 3 or query.shape[0] < 2:
            return whole
        mask = attn_mask
        if mask is not None:
            full = (*query.shape[:-1], key.shape[-2])
            mask = mask.expand(full)[-1:].flip(-1)
        last = super().forward(query[-1:], key[-1:].flip(-2), value[-1:].flip(-2), mask)
        return torch.cat((whole[:-1], last))
