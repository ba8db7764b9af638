"""What small calls show of a mechanism's conventions, and what they cannot tell."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.adaptation import spec_of
from attnbench.calling.binding import FIRST, SECOND, Binding, Mask
from attnbench.calling.making.recipes import woken
from attnbench.calling.roles import SETTINGS
from attnbench.calling.signature import renamed
from attnbench.calling.styles import adapted, known_style, name_of
from attnbench.calling.trials.facts import (
    causality,
    empty_rows,
    hiding,
    is_scaled_dot,
    lets_nan_through,
    mask_value,
    positions,
)
from attnbench.calling.trials.small_calls import KEYS, QUERIES, WIDTH, Callee, Calls, close
from attnbench.errors import StyleError
from attnbench.specs import MechanismSpec, Sizes

_VARIED = 16
"""Different weights, of 210, below which nothing tells in which dtype they were computed."""
_MOST_EXTRA = 64


@dataclass(frozen=True)
class Probe:
    """What small calls showed of a callee.

    Args:
        name: the callee's name.
        conventions: the conventions that were inferred, under the names that specs use.
        unknown: those that no call could tell.
        style: the style of call; ``None`` for a spec.
        spec: a spec with these conventions, without a reference where it computes another formula.
    """

    name: str
    conventions: Mapping[str, Any]
    unknown: tuple[str, ...]
    style: str | None
    spec: MechanismSpec


def probe(function: Any, *, call: str | None = None) -> Probe:
    """Infer by small calls which conventions a callee of query, key and value follows.

    Args:
        function: a function, a module, a class, or the spec of a mechanism.
        call: what its arguments are called, as ``"f(queries=query, keys=key, values=value)"``.

    Raises:
        StyleError: no call of it is known, or it takes no query, key and value.
    """
    spec = function
    if not isinstance(function, MechanismSpec):
        target = function if call is None else renamed(function, call)
        style = known_style(target) if callable(target) else None
        spec = spec_of(target) if style is None else adapted(target, style)
    if not isinstance(spec, MechanismSpec):
        raise StyleError(f"{name_of(function)} takes no query, key and value.")
    calls = _canonical(spec)
    found: dict[str, Any] = {"masks": _masks(calls, "valid_lens" in spec.accepts)}
    unknown = []
    for key, ask in _QUESTIONS.items():
        value = ask(calls, found)
        if value is not None:
            found[key] = value
        elif key not in _OF_SOME:
            unknown.append(key)
    if (inner := _internal_dtype(calls)) is not None:
        found["internal_dtype"] = inner or None
    conventions = {**spec.conventions, **found}
    other: dict[str, Any] = {} if is_scaled_dot(calls) else {"reference": None, "formula": ""}
    declared = spec.reference is not None and getattr(spec, "style", "") in ("sdpa", "flash")
    named = getattr(spec, "style", None)
    made = replace(spec, conventions=conventions, **(other if declared else {}))
    return Probe(spec.name, found, tuple(unknown), named, made)


def _canonical(spec: MechanismSpec) -> Calls:
    """Small calls of a spec's module, as mechanisms are called."""
    sizes = Sizes((2,), QUERIES, KEYS, WIDTH, WIDTH, WIDTH)
    legal = sizes if spec.sizes is None else spec.sizes(sizes)
    accepts = {name: SETTINGS[name] for name in spec.accepts if name in SETTINGS}
    binding = Binding(
        shape="attention",
        layout="BHLE",
        memory="BHSE",
        roles={"0": "query", "1": "key", "2": "value", "attn_mask": "mask", **accepts},
        masks={"attn_mask": Mask("..LS", "shows", floating=True)},
        output=(FIRST, "BHLE"),
        weights=(SECOND, "BHL") if "lse" in spec.returns else None,
        square=legal.kv_len == QUERIES,
    )
    calls = Calls(Callee(spec.make, legal.query_size), binding)
    if spec.dtypes is not None and "float32" not in spec.dtypes:
        calls.dtype = spec.dtypes[0]
    return calls


def _masks(calls: Calls, takes_lengths: bool) -> tuple[str, ...]:
    """The forms of masks that hide what they should."""
    base = calls.reach()
    if base is None:
        return ()
    keys = base.shape[-1]
    allowed = (torch.arange(QUERIES)[:, None] * 3 + torch.arange(keys) * 5) % 7 < 4
    allowed[:, 0] = True
    seen = calls.reach(attn_mask=allowed)
    forms = ["boolean"] if seen is not None and torch.equal(seen, allowed & base) else []
    if not forms:
        seen = calls.reach(attn_mask=allowed[:1])
        forms = ["boolean", "keys"] if seen is not None and _same(seen, allowed[:1] & base) else []
    seen = calls.reach(attn_mask=torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf))
    forms += ["floating"] if seen is not None and torch.equal(seen, allowed & base) else []
    is_usual = forms == ["boolean", "floating"]
    return tuple(forms + (["lengths"] if takes_lengths or is_usual else []))


def _same(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one, two.expand(one.shape))


def _hides(calls: Calls, found: dict[str, Any]) -> bool:
    """Whether a mask hides anything; the calls give one of the form that is taken."""
    forms = found["masks"]
    axes, says = "..1S" if "keys" in forms else "..LS", "shows" if "boolean" in forms else "added"
    form = Mask(axes, says, floating="floating" in forms)
    calls.binding = calls.binding.replace(masks={"attn_mask": form})
    return bool({"boolean", "floating"} & {*forms})


def _empty_rows(calls: Calls, found: dict[str, Any]) -> str | None:
    if not _hides(calls, found):
        return None
    calls = _with_moved_zeros(calls)
    row = empty_rows(calls, hiding(calls, 0) or {})
    if "return_weights" in calls.binding.roles:
        weighed = calls.replace(weights=(SECOND, "BHLS"))
        row = row if row == empty_rows(weighed, hiding(calls, 0) or {}) else "nan"
    if row != "nan" or "boolean" in found["masks"]:
        return row
    low = torch.finfo(getattr(torch, calls.dtype)).min  # where -inf makes NaN
    lowest = empty_rows(calls, {"attn_mask": torch.full((QUERIES, KEYS), low)})
    if lowest != "nan":
        found["mask_value"] = low
    return lowest


def _with_moved_zeros(calls: Calls) -> Calls:
    """Calls with other values for what starts at zero: a bias of zeros passes for a row of them."""

    def moved(*sizes: int) -> nn.Module:
        return woken(copy.deepcopy(calls.callee.make(*sizes)), biases=True)

    other = Calls(Callee(moved, calls.callee.width), calls.binding)
    other.dtype = calls.dtype
    return other


def _hidden_slots(calls: Calls, found: dict[str, Any]) -> str | None:
    if not _hides(calls, found):
        return None
    return "finite" if lets_nan_through(calls) or "boolean" not in found["masks"] else "any"


def _causal(calls: Calls, found: dict[str, Any]) -> str | None:
    """Where the diagonal of causality ends if L and S differ."""
    if causality(calls):
        return "always"
    if "causal" not in calls.binding.roles.values():
        return None
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    own, wide = calls.reach(5, 5, is_causal=True), calls.reach(is_causal=True)
    if own is None or not _same(own, triangle):
        return None
    if wide is None or calls.binding.square:
        return "square"
    every = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    corners = {"top_left": 0, "bottom_right": KEYS - QUERIES}
    return next((name for name, at in corners.items() if _same(wide, every.tril(at))), None)


def _positions(calls: Calls, found: dict[str, Any]) -> str | None:
    """Whether keys may be reordered, or all shifted behind keys that are hidden."""
    if found.get("causal") == "always":
        query, key, value = calls.tensors(5, 5)
        plain, turned = (
            calls([query, key.roll(shift, -2), value.roll(shift, -2)]) for shift in (0, 1)
        )
        if plain is not None and turned is not None:
            return "none" if close(plain[..., -1, :], turned[..., -1, :]) else "absolute"
        return None
    if not positions(calls):
        return "none"
    if not _hides(calls, found):
        return None
    query, key, value = calls.tensors()
    late = (torch.arange(KEYS) >= 2).expand(QUERIES, KEYS)
    hidden = calls([query, key, value], attn_mask=late)
    fewer = calls([query, key[..., 2:, :], value[..., 2:, :]])
    alike = hidden is not None and fewer is not None and close(hidden, fewer)
    return "relative" if alike else "absolute"


def _extra_keys(calls: Calls, found: dict[str, Any]) -> int | None:
    """How many keys of its own it adds, where all scores are equal, as of a query of zeros."""
    moves = []
    for count in (1, 5):
        query, key, value = calls.tensors(5, count)
        before, after = (calls([query * 0, key, value + by]) for by in (0.0, 1.0))
        if before is None or after is None:
            return None
        moves.append(float((after - before).norm()))
    if not 0 < moves[0] <= moves[1] * (1 + 1e-2):
        return None
    ratio = moves[1] / moves[0]  # 5/(5 + n) to 1/(1 + n)
    number = 5 * (ratio - 1) / (5 - ratio) if ratio < 5 else math.inf
    is_whole = number <= _MOST_EXTRA and abs(number - round(number)) <= 1e-2
    return round(number) if is_whole else None


def _per_head(calls: Calls, found: dict[str, Any]) -> bool | None:
    """Whether heads that change places give other outputs."""
    plain, turned = calls(), calls([t.roll(1, 1) for t in calls.tensors()])
    return None if plain is None or turned is None else not close(turned, plain.roll(1, 1))


def _gradients(calls: Calls, found: dict[str, Any]) -> bool | None:
    graded = calls.replace()
    graded.graded = True
    output = graded()
    return bool(output.requires_grad) if output is not None else None if calls() is None else False


def _lse_base(calls: Calls, found: dict[str, Any]) -> str | None:
    """The base of a log-sum-exp: of S scores of 0 it is log(S)."""
    query, key, value = calls.tensors()
    both = calls.both([query * 0, key, value]) if calls.binding.sums else None
    for base, expected in (("e", math.log(KEYS)), ("2", math.log2(KEYS))):
        if both is not None and close(both[1], torch.full_like(both[1], expected)):
            return base
    return None


def _lse_empty(calls: Calls, found: dict[str, Any]) -> float | None:
    """The log-sum-exp of a row without keys."""
    given = hiding(calls, 0) if calls.binding.sums and found["masks"] else None
    both = None if given is None else calls.both(**given)
    values = set() if both is None else {repr(value) for value in both[1].flatten().tolist()}
    return float(values.pop()) if len(values) == 1 else None


def _internal_dtype(calls: Calls) -> str | None:
    """The dtype that holds all weights of a float64 call; empty if it is float64 itself."""
    query, key, value = calls.tensors()
    unit = torch.eye(*value.shape[-2:]).expand(value.shape)
    found = calls([query, key, unit], dtype="float64")
    if found is None or found.dtype != torch.float64:
        return None
    weights = found[..., : value.shape[-2]]
    if len({*weights.flatten().tolist()}) < _VARIED:
        return None
    for dtype in ("bfloat16", "float16", "float32"):
        if torch.equal(weights.to(getattr(torch, dtype)).double(), weights):
            return dtype
    return ""


_OF_SOME = ("mask_value", "lse_base", "lse_empty")
"""What most have none of."""
_QUESTIONS: Mapping[str, Callable[[Calls, dict[str, Any]], Any]] = {
    "causal": _causal,
    "extra_keys": _extra_keys,
    "empty_rows": _empty_rows,
    "hidden_slots": _hidden_slots,
    "mask_value": lambda calls, found: mask_value(calls) if "boolean" in found["masks"] else None,
    "positions": _positions,
    "per_head": _per_head,
    "gradients": _gradients,
    "lse_base": _lse_base,
    "lse_empty": _lse_empty,
}
