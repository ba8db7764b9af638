"""Streams of inputs that nobody could know before: fresh values at the same addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Inputs
from attnbench.testing import lay_out
from attnbench_judge.inputs.secret import Secret

_REGIMES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 32.0, 1 / 32)
"""Sizes of queries that a call draws from: softmax saturates at one and is flat at the other."""
_QUERIES = {"saturating": 32.0, "flat": 1 / 32, "no_queries": 0.0, "tiny_queries": 2.0**-13}
_KEYS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "growing": lambda t: t * torch.linspace(0.1, 3.0, t.shape[-2]).unsqueeze(-1),
    "shrinking": lambda t: t * torch.linspace(3.0, 0.1, t.shape[-2]).unsqueeze(-1),
    "far_keys": lambda t: t + 4.0,
    "equal_keys": lambda t: t[..., :1, :].expand(t.shape).clone(),
    "some_keys": lambda t: t * (torch.arange(t.shape[-2]) % 5 < 4).unsqueeze(-1),
    "pairs": lambda t: t[..., torch.arange(t.shape[-2]) // 2, :],
    "outlier": lambda t: torch.cat([50 * t[..., :1], t[..., 1:]], -1),
}
_VALUES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "far_values": lambda t: t + 8.0,
    "large_values": lambda t: t * 1e3,
}
_POWERS = {"huge_values": (5.0, 30.0), "tiny_values": (-30.0, -5.0)}
"""Least and greatest power of ten of values; of float16 the one nearest to 0."""
_POOL = 3
LOST = -1e30
"""Where a floating mask in float32 is below it for all keys of a query, scores are rounded away."""
_UNITS = 4.0
"""By how many units of rounding a mean of values may lie outside of them, as in error budgets."""


class Stream:
    """Fresh inputs of one shape, made by one pass over memory.

    A few tensors are drawn at first; each call multiplies their features by new random numbers, so
    that no call's output follows from earlier ones.

    Args:
        case: its leading sizes, at most two, its other sizes and its dtype.
        keywords: of the call, by meaning.
        style: style of call.
        secret: draws the values of each call.
        causal: where causality ends: ``"bottom_right"`` or ``"top_left"``.
        layouts: of query, key and value: keys of :data:`attnbench.cases.case.LAYOUTS`, or
            ``"misaligned"`` for a tensor one element behind the start of its storage, or
            ``"one_head"`` for one that all heads share, with stride 0, or ``"first_rows"`` or
            ``"later_items"`` of a longer tensor, or of a larger batch, or ``"overlapping"`` where a
            row begins one element behind the row before.
        places: which of the tensors that are made for query, key and value stands for each.
        view: ``"packed"`` where all are views of one tensor (B, L, 3, H, E), with L = S,
            ``"features"`` where the value is the first features of what stands for it, or
            ``"rows"`` where the shorter one of query and key is the last rows of the longer.
        scores, values: what is special about query and key, and about values, as in
            :data:`attnbench_judge.inputs.axes.AXES`; where ``scores`` is empty, each call draws how
            large its queries are.
        name: what is special about it.
    """

    def __init__(
        self,
        case: Case,
        keywords: Mapping[str, Any],
        style: str,
        secret: Secret,
        kv_heads: int | None = None,
        *,
        causal: str = "bottom_right",
        layouts: Sequence[str] = ("contiguous",) * 3,
        places: Sequence[int] = (0, 1, 2),
        view: str = "",
        scores: str = "",
        values: str = "",
        name: str = "",
    ) -> None:
        self.case, self.keywords = case, keywords
        self.causal, self.layouts, self.places, self.view = causal, layouts, places, view
        self.scores, self.values, self.name = scores, values, name
        self.secret, self.grouped = secret, kv_heads is not None
        self.turned = style == "flash"
        lead = (*(1,) * (2 - len(case.lead)), *case.lead)
        self.kv_lead = lead if kv_heads is None else (lead[0], kv_heads)
        self.shapes = (
            (*lead, case.q_len, case.query_size),
            (*self.kv_lead, case.kv_len, case.key_size),
            (*self.kv_lead, case.kv_len, case.value_size),
        )
        self.pools: list[list[Tensor]] = []
        self._drawn: list[Tensor] = []

    def by_heads(self, output: Tensor) -> Tensor:
        """An output of the callee as ``(B, H, L, Ev)``."""
        return output.transpose(1, 2) if self.turned and output.dim() == 4 else output

    def in_words(self) -> str:
        """Its sizes, its dtype, and what is special about it."""
        (batch, heads, q_len, size), (_, _, kv_len, _), (*_, value_size) = self.shapes
        sizes = f"B={batch}, H={heads}, L={q_len}, S={kv_len}, E={size}, Ev={value_size}"
        return ", ".join(part for part in (sizes, self.case.dtype, self.name) if part)

    def _pools(self, generator: torch.Generator) -> list[list[Tensor]]:
        """Values for query, key and value: one of each if what they are like is asked for."""
        dtype, count = getattr(torch, self.case.dtype), 1 if self.scores else _POOL
        pools = []
        keys = _KEYS.get(self.scores)
        queries = keys if self.scores == "pairs" else None
        changes = (queries, keys, self._change_of_values(generator))
        for shape, change in zip(self.shapes, changes, strict=True):
            drawn = [torch.randn(shape, generator=generator) for _ in range(count)]
            drawn = drawn if change is None else list(map(change, drawn))
            turned = (t.transpose(1, 2) if self.turned else t for t in drawn)
            pools.append([t.to(dtype).contiguous() for t in turned])
        return pools

    def _change_of_values(self, generator: torch.Generator) -> Callable[[Tensor], Tensor] | None:
        if self.values not in _POWERS:
            return _VALUES.get(self.values)
        powers = _POWERS[self.values]
        place = float(torch.rand((), generator=generator))
        power = powers[0] + place * (powers[1] - powers[0])
        power = min(powers, key=abs) if self.case.dtype == "float16" else power
        return lambda t: t * 10.0**power

    def draw(self) -> None:
        """Make the next call's inputs."""
        generator = self.secret.generator()
        self.pools = self.pools or self._pools(generator)
        place = int(torch.randint(len(_REGIMES), (), generator=generator))
        size = _QUERIES.get(self.scores, 1.0) if self.scores else _REGIMES[place]
        reflexive = self.places[1] == 0
        size = min(size, 0.5) if reflexive else size  # or a row attends to itself
        made = []
        sizes = (size, size if reflexive else 1.0, 1.0)
        for pool, scale, layout in zip(self.pools, sizes, self.layouts, strict=True):
            base = pool[int(torch.randint(len(pool), (), generator=generator))]
            factors = torch.rand(base.shape[-1], generator=generator) + 0.5
            signs = torch.randint(2, factors.shape, generator=generator) * 2 - 1
            tensor = base * (factors * signs * scale).to(base.dtype)
            made.append(_laid_out(tensor, layout, 2 if self.turned else 1))
        self._drawn = self._together(made)

    def tensors(self) -> list[Tensor]:
        """The drawn inputs, as they are stored; nobody may change them."""
        return list(self._drawn)

    def _together(self, made: list[Tensor]) -> list[Tensor]:
        """Query, key and value of what was made for each, as far as they are one tensor."""
        if self.view == "packed":
            parts = made if self.turned else [t.transpose(1, 2) for t in made]
            parts = list(torch.stack(parts, 2).unbind(2))
            return parts if self.turned else [t.transpose(1, 2) for t in parts]
        query, key, value = (made[place] for place in self.places)
        if self.view == "features":
            value = value[..., : self.case.value_size]
        if self.view == "rows":
            rows = 1 if self.turned else 2
            longer = max(made[:2], key=lambda tensor: tensor.shape[rows])
            query, key = (
                longer.narrow(rows, longer.shape[rows] - count, count)
                for count in (self.case.q_len, self.case.kv_len)
            )
        return [query, key, value]

    def inputs(self) -> Inputs:
        """The drawn inputs as ``(B, H, L, E)``, with causality as a mask."""
        query, key, value = (t.transpose(1, 2) if self.turned else t for t in self.tensors())
        if self.grouped:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mask = self.keywords.get("attn_mask")
        if self.keywords.get("is_causal"):
            pair = query.shape[-2], key.shape[-2]
            last = 0 if self.causal == "top_left" else pair[1] - pair[0]
            mask = torch.ones(pair, dtype=torch.bool).tril(last)
        if (lost := self._lost()) is not None and mask is not None:
            query, mask = query.masked_fill(lost, 0.0), mask.masked_fill(lost, 0.0)
        return Inputs(query, key, value, attn_mask=mask, scale=self.keywords.get("scale"))

    def _lost(self) -> Tensor | None:
        """The rows of a floating mask by which scores are rounded away, ``(..., L, 1)``."""
        mask = self.keywords.get("attn_mask")
        if mask is None or not mask.is_floating_point():
            return None
        low, high = mask.aminmax(dim=-1, keepdim=True)
        lost: Tensor = (high < LOST) & low.isfinite()
        return lost

    def averaged(self, output: Tensor, value: Tensor) -> Tensor:
        """An output with the plain mean of the values in place of any mean, where scores are lost.

        One pass over all keys has equal weights there. If parts of them are merged by their
        log-sum-exps, the lengths of the parts are rounded away as well, and the weights are others.

        Args:
            output, value: ``(B, H, L, Ev)`` and ``(B, H, S, Ev)``.
        """
        lost = self._lost()
        if lost is None:
            return output
        low, high = value.double().aminmax(dim=-2, keepdim=True)
        slack = _UNITS * torch.finfo(value.dtype).eps * torch.maximum(low.abs(), high.abs())
        wide = output.double()
        within = ((wide >= low - slack) & (wide <= high + slack)).all(-1, keepdim=True)
        return torch.where(lost & within, value.double().mean(-2, keepdim=True), wide)


def _laid_out(tensor: Tensor, layout: str, heads: int) -> Tensor:
    if layout == "one_head":
        return tensor.narrow(heads, 0, 1).expand(tensor.shape)
    if layout in ("first_rows", "later_items"):  # as of a cache of keys, and of a larger batch
        dim, start = (3 - heads, 0) if layout == "first_rows" else (0, 1)
        shape = list(tensor.shape)
        shape[dim] += 3
        part = tensor.new_full(shape, math.nan).narrow(dim, start, tensor.shape[dim])
        return part.copy_(tensor)
    if layout == "overlapping":
        wide = tensor.transpose(1, heads)  # (B, H, N, E)
        line = torch.cat([wide[..., 0], wide[..., -1, 1:]], -1)
        return line.unfold(-1, wide.shape[-1], 1).transpose(1, heads)
    if layout != "misaligned":
        return lay_out(tensor, layout)
    wide = tensor.new_empty(tensor.numel() + 1)
    return wide[1:].view(tensor.shape).copy_(tensor)
