"""A callee called as a mechanism or a scoring function: canonical tensors in, its own out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import DtypeError, ShapeError
from attnbench.styles import SETTINGS, name_of, refusals, with_causality
from attnbench_plugins.adapters.binding import Binding, Fill, Given, Part, Through, part_of
from attnbench_plugins.adapters.calls.caches import copied, drop_graphs
from attnbench_plugins.adapters.calls.frame import Frame, folded


class Called(nn.Module):
    """A module that calls a callee as a binding says.

    Args:
        callee: a function or a module.
        binding: how it is called.
        keeps_graphs: whether tensors that a call leaves on the callee keep their graphs, as where
            nobody copies it.
    """

    def __init__(self, callee: Any, binding: Binding) -> None:
        super().__init__()
        self.callee, self.binding, self.keeps_graphs = callee, binding, False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        if isinstance(self.callee, nn.Module):
            memo[id(self.callee)] = copied(self.callee, memo)
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def _called(self, given: Mapping[str, Any], like: Tensor, masked: bool) -> Any:
        """What the callee gives; its refusals are raised as such."""
        with refusals(name_of(self.callee), masked=masked, on_cpu=like.device.type == "cpu"):
            paired = self.binding.paired
            given = {n: (v,) * paired[n] if n in paired else v for n, v in given.items()}
            places = [given[name] for name in given if name.isdigit()]
            return self.callee(*places, **{k: v for k, v in given.items() if not k.isdigit()})

    def _constant(self, value: Any, sizes: Mapping[str, int], like: Tensor) -> Any:
        """What an argument gets that nothing varies, in a call of these sizes."""
        if type(value) is tuple:
            return tuple(self._constant(each, sizes, like) for each in value)
        return value.value(sizes, like) if isinstance(value, Fill | Given) else value

    def _part(self, result: Any, where: tuple[Part, str]) -> Tensor:
        """A tensor of what a call gave.

        Raises:
            DtypeError, ShapeError: it is none, or has other dimensions than it had in a trial.
        """
        found: Any = part_of(result, where[0], self.callee)
        name = name_of(self.callee)
        if not isinstance(found, Tensor):
            kind = type(found).__name__
            raise DtypeError(f"{name} returned {kind} for its output, but should return a tensor.")
        if found.dim() != len(where[1]):
            raise ShapeError(f"{name} returned {tuple(found.shape)}, but should return {where[1]}.")
        return found


class Attention(Called):
    """A callee with the interface of a mechanism, or of a scoring function."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        return_weights: bool = False,
        **given: Any,
    ) -> Any:
        """The output ``(..., L, Ev)``, and the weights ``(..., L, S)`` on request, or scores."""
        value = key if value is None else value
        if return_weights:
            given["return_weights"] = True
        output, weights = self._outcome(query, key, value, attn_mask, valid_lens, given)
        if self.binding.shape == "scores":
            return weights
        if self.binding.output is None:
            output = weights @ value
        elif self.binding.shape == "memory" and self.binding.pools:
            output = _held_to_pooling(output, weights, key, value)
        elif self.binding.shape == "memory":
            output = folded(output, value.shape[-1])
        return (output, weights) if return_weights or self.binding.sums else output

    def _outcome(self, query: Tensor, key: Tensor, *more: Any) -> tuple[Any, Any]:
        result, frame = self.result(query, key, *more), Frame(query, key, self.binding)
        output, weights = self.binding.output, self.binding.weights
        found = (
            None if output is None else frame.unfolded(self._part(result, output), output[1]),
            None if weights is None else self._beside(result, frame, weights),
        )
        if not self.keeps_graphs:
            drop_graphs(self.callee)
        return found

    def _beside(self, result: Any, frame: Frame, where: tuple[Part, str]) -> Any:
        """What comes with an output, as it is where it has other dimensions than weights."""
        found: Any = part_of(result, where[0], self.callee)
        if isinstance(found, Tensor) and found.dim() == len(where[1]):
            return frame.unfolded(found, where[1])
        return found if self.binding.shape == "attention" else self._part(result, where)

    def result(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """What the callee gives."""
        bound = self.binding
        own = {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}
        if not own.get("dropout") or not self.training:
            own.pop("dropout", None)
        own = {role: value for role, value in own.items() if value is not False}
        heads = getattr(self.callee, "num_heads", 0)
        heads = heads if isinstance(heads, int) else 0
        frame = Frame(query, key, bound, grouped="gqa" in own, heads=heads)
        if mask is not None and bound.one_mask and own.pop("causal", False):
            mask = with_causality(mask, query, key)
        masked = mask is not None or lens is not None or "causal" in own
        queries, keys, values = frame.query(query), frame.keys(key), frame.keys(value)
        if bound.dense:
            queries, keys, values = (t.contiguous() for t in (queries, keys, values))
        own |= dict.fromkeys(("query", "hidden"), queries) | dict.fromkeys(("key", "memory"), keys)
        own["value"] = values
        arguments = self._arguments(frame, own, frame.masks(mask, lens), query, key)
        if bound.reset:
            getattr(self.callee, bound.reset)()
        if bound.prepare:
            getattr(self.callee, bound.prepare)(own["key"])
        return self._called(arguments, query, masked)

    def _arguments(
        self, frame: Frame, own: dict[str, Any], masks: dict[str, Any], query: Tensor, key: Tensor
    ) -> dict[str, Any]:
        """What each argument gets, of what a call gives to roles; some are left out."""
        values, found = self.binding.values, dict(masks)
        sizes = {**frame.sizes(self.callee), "E": query.shape[-1]}
        for name, role in self.binding.roles.items():
            if name in found:
                continue
            if role in own:
                scales = role in ("key_scale", "value_scale")
                by_head = name.endswith("descale")
                found[name] = frame.scale(own[role], key, by_head=by_head) if scales else own[role]
            elif isinstance(values.get(name), Through):
                found[name] = self.callee.get_submodule(values[name].place)(own["memory"])
            elif name in values:
                found[name] = self._constant(values[name], sizes, query)
        return {name: found[name] for name in self.binding.roles if name in found}


def _held_to_pooling(context: Tensor, weights: Tensor, memory: Tensor, value: Tensor) -> Tensor:
    """Weights times value; where the callee's own context is not weights times memory, it shows."""
    output, own = weights @ value, weights @ memory
    if context.shape != own.shape:
        return output
    size = weights.abs() @ memory.abs()
    eps = torch.finfo(own.dtype).eps
    return output + torch.where((context - own).abs() <= 64 * eps * size, 0.0, context - own).sum(
        -1, keepdim=True
    )
