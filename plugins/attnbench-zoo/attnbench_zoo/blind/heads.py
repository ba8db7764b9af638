"""Heads, and groups of them, that meet the wrong ones."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS, Heads
from attnbench_zoo.twins.options import OPTIONS, Options

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)
_options = Group(OPTIONS, MUTANTS)


@_heads("jsbaan/transformer-from-scratch#6")
class HeadsMergedWithoutAPermute(Heads):
    """The heads are merged by a reshape alone, which mixes positions into one token."""

    def merge(self, tensor: Tensor) -> Tensor:
        _, length, size = tensor.shape
        return tensor.reshape(-1, length, self.heads * size)


@_heads("lucidrains/vit-pytorch#65")
class ScaledByTheWholeWidth(Heads):
    """Scores are scaled by the width of all heads, not of one."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scale = (self.heads * query.shape[-1]) ** -0.5
        output: Tensor = self.inner(query, key, value, mask, scale=scale)
        return output


@_options("Dao-AILab/flash-attention#2528")
class CausalRowsDividedByTheGroup(Options):
    """The number of a query is divided by the heads in a group, as if these were packed in rows."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        rows = torch.arange(q_len, device=device) // self.given[4] + (kv_len - q_len)
        return torch.arange(kv_len, device=device) <= rows.unsqueeze(-1)


@_attention("ggml-org/llama.cpp#19115")
class GroupsPaddedToAPowerOfTwo(Attention):
    """Heads are counted in groups of the next power of two, whatever their size."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        padded = 1 << (groups - 1).bit_length()
        heads = torch.arange(groups * tensor.shape[-3], device=tensor.device) // padded
        return tensor.index_select(-3, heads)


@_options("HazyResearch/HipKittens#22")
class HeadsOfGroupsCollide(Options):
    """Blocks are mapped to heads by the size of a group alone, so that some heads stay zero."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output, group = super().pool(weights, value), self.given[4]
        if group == 1:
            return output
        blocks = torch.arange(output.shape[-3], device=output.device)
        written = torch.isin(blocks, blocks % group * group + blocks // group)
        return output.masked_fill(~written[:, None, None], 0.0)
