"""Grouped heads: keys and values that several heads of the query share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("onnx#7274", "axlearn#842", killers=("grouped_heads_equal_expanded_heads",))
class GroupedHeadsTiled(Attention):
    """Heads of keys are tiled over the groups, where they should be interleaved."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        repeats = [1] * tensor.dim()
        repeats[-3] = groups
        return tensor.repeat(repeats)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupedHeadsOfTheFirst(Attention):
    """Every group of queries gets the first head of the keys."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        heads = tensor.shape[-3] * groups
        return tensor[..., :1, :, :].expand(*tensor.shape[:-3], heads, *tensor.shape[-2:])


@_attention("own", killers=("hidden_slots_may_hold_nan",))
class PaddingReachesGroups(Attention):
    """With grouped heads, what padding holds as value is multiplied by weights of 0."""

    def forward(self, *args: Any, enable_gqa: bool = False, **keywords: Any) -> Any:
        self.grouped = enable_gqa
        return super().forward(*args, enable_gqa=enable_gqa, **keywords)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        return value if self.grouped else super().silence_value(value, allowed)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupsShareTheLongestLength(Attention):
    """With grouped heads, one length for each query becomes the longest of them."""

    def forward(self, *args: Any, enable_gqa: bool = False, **keywords: Any) -> Any:
        lens = keywords.get("valid_lens")
        if enable_gqa and lens is not None and lens.dim() == 2:
            keywords["valid_lens"] = lens.amax(-1)
        return super().forward(*args, enable_gqa=enable_gqa, **keywords)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupsTiledBesideManyKeys(Attention):
    """Beyond a block of keys the heads of key and value are tiled, not repeated."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        if tensor.shape[-2] <= BLOCK:
            return super().expand_heads(tensor, groups)
        return torch.cat([tensor] * groups, dim=-3)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class WeightsOfGroupsInAnotherOrder(Attention):
    """With groups the weights handed back have the heads of all groups in turn."""

    def forward(self, query: Tensor, key: Tensor, *args: Any, **keywords: Any) -> Any:
        found = super().forward(query, key, *args, **keywords)
        if not (keywords.get("enable_gqa") and keywords.get("return_weights")):
            return found
        output, weights = found
        return output, weights.unflatten(-3, (key.shape[-3], -1)).transpose(-4, -3).flatten(-4, -3)


@_attention("own", killers=("dropout_is_independent",))
class GroupsDropTheSame(Attention):
    """The heads of a group lose the same weights."""

    groups = 1

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        self.groups = groups
        return super().expand_heads(tensor, groups)

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if self.groups == 1 or not self.training:
            return super().drop(weights, dropout_p)
        kept = super().drop(torch.ones_like(weights[..., :: self.groups, :, :]), dropout_p)
        dropped = weights * kept.repeat_interleave(self.groups, dim=-3)
        self.groups = 1
        return dropped


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class ScaleOnTopForGroups(Attention):
    """Where heads are grouped, a scale that is given comes on top of the usual one."""

    def forward(self, query: Tensor, *args: Any, enable_gqa: bool = False, **given: Any) -> Any:
        if enable_gqa and given.get("scale") is not None:
            given["scale"] *= query.shape[-1] ** -0.5
        return super().forward(query, *args, enable_gqa=enable_gqa, **given)
