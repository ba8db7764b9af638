"""Softmax of scaled dot products behind the projections of a layer, found by trying.

The projections are found by usual names of attributes. The formula is taken only where it gives
what the layer gives; then the layer is held to it at all sizes. Where one common factor of the
scores would make it so, that factor is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench_plugins.adapters.binding import Given
from attnbench_plugins.adapters.calls.frame import heads_of, number_of
from attnbench_plugins.adapters.trials.small_calls import Calls

NAMES: Mapping[str, str] = {
    "all": "c_attn qkv to_qkv qkv_proj wqkv w_qkv in_proj query_key_value qkv_linear attn",
    "query": "to_q q_proj query wq w_q w_query q q_linear linear_q query_proj q_lin query_layer "
    "query_projection queries to_queries to_query proj_q w_qs",
    "key": "to_k k_proj key wk w_k w_key k k_linear linear_k key_proj k_lin key_layer "
    "key_projection keys to_keys to_key proj_k w_ks",
    "value": "to_v v_proj value wv w_v w_value v v_linear linear_v value_proj v_lin value_layer "
    "value_projection values to_values to_value proj_v w_vs",
    "out": "out_proj c_proj proj to_out o_proj wo w_o out dense fc_out output_linear out_lin "
    "proj_out linear_out out_projection unify_heads unifyheads proj_o linear_o o fc",
}
"""Usual names of the projections of a layer: of all three in one, of each, and of the output."""

_ROLES = {name: role for role, names in NAMES.items() for name in names.split()}
_ORDERS = ("parts", "by head", "by feature")
_WRONG = ((-2, "queries"), (-3, "heads"))
"""Axes of the scores over which a softmax is taken by mistake: the layer is held to the keys."""
_CLOSE = 1e-4
_POWERS = tuple(step / 4 for step in range(-24, 25))
"""Powers of two that are tried for a factor, by quarters."""

Linear = tuple[Tensor, Tensor | None]
"""A weight ``(out, in)`` and a bias."""


@dataclass(frozen=True)
class Projected:
    """Heads of ``softmax(factor · q·k / √d) v`` behind linear maps of the tokens.

    Args:
        order: how one matrix for query, key and value holds them: in three parts, three parts of
            each head, or three rows of each feature of a head.
        heads: the number of heads, where the module does not say it; 0 where it does.
        causal: whether a token sees its own and earlier ones only.
        factor: of the scores, beside ``1 / √d``.
        axis: the axis of the scores ``(..., H, L, S)`` that the softmax is over.
    """

    order: str
    heads: int
    causal: bool
    factor: float = 1.0
    axis: int = -1

    def __call__(self, module: Any, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """The output ``(..., L, E)`` of hidden states, in their dtype."""
        maps = projections_of(module)
        query, key, value = self._sides(module, maps, hidden)
        scores = self.factor * query @ key.mT / math.sqrt(query.shape[-1])
        shown = torch.ones(scores.shape[-2:], dtype=torch.bool)
        shown = shown.tril() if self.causal else shown
        if real is not None:
            shown = shown & real
        weights = scores.masked_fill(~shown, -math.inf).softmax(self.axis).nan_to_num()
        output = (weights @ value).transpose(-3, -2).flatten(-2)
        return _mapped(maps["out"], output) if "out" in maps else output

    def rows(self, module: Any, hidden: list[list[float]], real: list[bool]) -> list[list[float]]:
        """The output's rows, as ``reference`` of a layer's spec."""
        states = torch.tensor(hidden, dtype=torch.float64)
        rows: list[list[float]] = self(module.callee, states, torch.tensor(real)).tolist()
        return rows

    def _sides(
        self, module: Any, maps: Mapping[str, Linear], hidden: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``(..., H, L, d)``."""
        count = self.heads or heads_of(module)
        if "all" not in maps:
            own = [_mapped(maps[side], hidden) for side in ("query", "key", "value")]
        else:
            own = self._parted(_mapped(maps["all"], hidden), count)
        size = own[0].shape[-1] // count
        query, key, value = (
            part.reshape(*part.shape[:-1], -1, size).transpose(-3, -2) for part in own
        )
        groups = query.shape[-3] // key.shape[-3]
        return query, key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)

    def _parted(self, whole: Tensor, heads: int) -> list[Tensor]:
        """The three parts of one projection."""
        if self.order == "parts":
            return [*whole.chunk(3, -1)]
        by_head = whole.reshape(*whole.shape[:-1], heads, -1)
        if self.order == "by head":
            return [part.flatten(-2) for part in by_head.chunk(3, -1)]
        return [part.flatten(-2) for part in by_head.reshape(*by_head.shape[:-1], -1, 3).unbind(-1)]


def _mapped(linear: Linear, hidden: Tensor) -> Tensor:
    weight, bias = linear
    own = None if bias is None else bias.detach().to(hidden)
    return nn.functional.linear(hidden, weight.to(hidden), own)


def projections_of(module: Any) -> dict[str, Linear]:
    """The projections of a module by their roles; empty where they are not all there."""
    found: dict[str, Linear] = {}
    for name, part in module.named_modules() if isinstance(module, nn.Module) else ():
        role = _ROLES.get(name.removesuffix(".0").rpartition(".")[2].lower())
        weight, bias = (getattr(part, each, None) for each in ("weight", "bias"))
        if role is None or role in found or not isinstance(weight, Tensor) or weight.dim() != 2:
            continue
        is_turned = not isinstance(part, nn.Linear)  # as of Conv1D, (in, out)
        found[role] = (weight.detach().mT if is_turned else weight.detach(), bias)
    for part in module.modules() if isinstance(module, nn.Module) else ():
        whole, bias = (getattr(part, f"in_proj_{each}", None) for each in ("weight", "bias"))
        if isinstance(whole, Tensor):
            found.setdefault("all", (whole.detach(), bias))
    sides = {"query", "key", "value"}
    return found if "all" in found or sides <= {*found} else {}


def projected_of(calls: Calls, causal: bool) -> tuple[Projected | None, str]:
    """The formula of a layer behind its projections, and what is said of it.

    Returns:
        ``None`` and a question where a common factor of the scores would make it so; ``None`` and
        nothing where it computes something else; what it should be where its softmax is wrong.
    """
    (hidden, *_), output = calls.tensors(), calls()
    module = calls.callee.at()
    if output is None or hidden.dim() != 3 or not projections_of(module):
        return None, ""
    states, expected = hidden.double(), output.double()
    for way in _ways(module, causal, calls.callee.width):
        gaps = [_gap(replace(way, factor=float(f)), module, states, expected) for f in (1, 1.01)]
        # scores that nothing depends on show nothing
        if gaps[0] < _CLOSE < gaps[1] and (not way.heads or _holds_at_other_widths(way, calls)):
            (many, *_), given = calls.many()
            gap = 0.0 if given is None else _gap(way, module, many.double(), given.double())
            if gap > _CLOSE and any(isinstance(v, Given) for v in calls.binding.values.values()):
                return None, ""  # what an example gives, as a number of tokens, is for as many
            beyond = f", but not among {many.shape[1]} tokens: is that meant?"
            beyond = beyond if gap > _CLOSE else ""
            return way, f"it computes softmax(q·k / √d) v behind its projections{beyond}"
    for way, (axis, over) in itertools.product(_ways(module, causal, calls.callee.width), _WRONG):
        if _gap(replace(way, axis=axis), module, states, expected) < _CLOSE:
            return way, f"its softmax is over the {over}, not the keys, behind its projections"
    for way in _ways(module, causal, calls.callee.width):
        factor = _factor(way, module, states, expected)
        if factor is not None:
            return None, (
                f"its scores are {factor:.4g} times q·k / √d behind its projections: is that meant?"
            )
    return None, ""


def _holds_at_other_widths(way: Projected, calls: Calls) -> bool:
    """Whether the number of heads stays as it is in a wider module, if there is one."""
    tensors = calls.tensors(sizes=calls.callee.scaled(2 * calls.callee.width))
    output, sides = calls(tensors), [tensors[0].shape[-1]] * 3
    if output is None:
        return True
    return _gap(way, calls.callee.at(*sides), tensors[0].double(), output.double()) < _CLOSE


def _ways(module: Any, causal: bool, width: int) -> Iterator[Projected]:
    """The ways to take its projections apart, likely ones first."""
    known = number_of(module, "heads")
    counts = [0] if known else [n for n in (1, 2, 4, 8) if width % n == 0]
    orders = _ORDERS if "all" in projections_of(module) else _ORDERS[:1]
    for order, heads in itertools.product(orders, counts):
        yield Projected(order, heads, causal)


def _gap(way: Projected, module: Any, hidden: Tensor, expected: Tensor) -> float:
    """How far the formula is from what a layer gives, in proportion."""
    try:
        got = way(module, hidden)
    except (RuntimeError, ValueError, ZeroDivisionError):  # of other sizes
        return math.inf
    if got.shape != expected.shape:
        return math.inf
    return float((got - expected).abs().amax() / expected.abs().amax())


def _factor(way: Projected, module: Any, hidden: Tensor, expected: Tensor) -> float | None:
    """The factor of the scores with which the formula gives what a layer gives."""

    def gap(power: float) -> float:
        return _gap(replace(way, factor=2.0**power), module, hidden, expected)

    nearest = min(_POWERS, key=gap)
    low, high = nearest - 0.25, nearest + 0.25
    for _ in range(40):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if gap(one) < gap(two) else (one, high)
    return 2.0**low if gap(low) < _CLOSE else None
