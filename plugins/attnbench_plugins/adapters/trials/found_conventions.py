"""The conventions of a bound callee, as small calls show: masks, hidden slots, order, precision."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.styles import FINITE
from attnbench_plugins.adapters.binding import Fill, Given
from attnbench_plugins.adapters.trials.small_calls import SHOWN, Calls, close, swapped


def conventions_of(calls: Calls) -> dict[str, Any]:
    """The conventions of what takes a query and keys."""
    found: dict[str, Any] = {}
    for ask in (_masks, _hidden, causality, positions, _of_others, coarseness):
        found |= ask(calls)
    return found


def _masks(calls: Calls) -> dict[str, Any]:
    forms = calls.binding.masks.values()
    words = [
        *("boolean" for form in forms if form.says not in ("lengths",)),
        *("floating" for form in forms if form.says == "added"),
        *("lengths" for form in forms if form.says == "lengths"),
    ]
    masks = [form for form in forms if form.says != "lengths"]
    if masks and not calls.binding.one_query and all(form.by_key for form in masks):
        words.append("keys")
    return {"masks": tuple(dict.fromkeys(words))}


def hiding(calls: Calls, left: int) -> dict[str, Any] | None:
    """The mask or the lengths that leave the first keys; ``None`` if it takes neither."""
    forms = calls.binding.masks.values()
    query, key, *_ = calls.tensors()
    if any(form.says != "lengths" for form in forms):
        by_key = all(form.by_key for form in forms)
        shape = (1 if by_key else query.shape[-2], key.shape[-2])
        return {"attn_mask": (torch.arange(shape[1]) < left).expand(shape)}
    return {"valid_lens": torch.full((3,), left)} if forms else None


def _hidden(calls: Calls) -> dict[str, Any]:
    """What a row without keys gives, what hidden slots may hold, and the value of the mask."""
    nothing = hiding(calls, 0)
    if nothing is None:
        return {}
    found: dict[str, Any] = {"empty_rows": empty_rows(calls, nothing)}
    if lets_nan_through(calls):
        found["hidden_slots"] = "finite"
    low = mask_value(calls)
    made = calls.callee.at()
    if low is not None and isinstance(made, nn.Module) and [*made.parameters()]:
        is_round = low in (-65504.0, float(f"{low:.2g}"))  # its scores are not q·k
        low = max(low, FINITE) if is_round else FINITE  # either sign may lie far from zero
    return found | ({} if low is None else {"mask_value": low})


def lets_nan_through(calls: Calls) -> bool:
    """Whether NaN in hidden keys or values reaches an output, or the call with them raises."""
    query, key, value = calls.tensors()
    for poisoned in (key, value):
        kept = poisoned[..., 1:, :].clone()
        poisoned[..., 1:, :] = math.nan
        output = calls([query, key, value], **(hiding(calls, 1) or {}))
        if output is None or not bool(output.isfinite().all()):
            return True
        poisoned[..., 1:, :] = kept
    return False


def empty_rows(calls: Calls, nothing: Mapping[str, Any]) -> str:
    """What a row without keys gives: a value of the convention.

    In float32 a large number swallows the scores that it is added to, and not in float64.
    """
    kind = next((k for k in ("float64", "") if calls(dtype=k, **nothing) is not None), "")
    both = calls.both(dtype=kind, **nothing)
    if both is None:
        return "refused"
    output, weights = both
    if bool(output.isnan().any()):
        return "nan"
    if bool((output == 0).all()):
        return "zeros"
    query, key, value = calls.tensors()
    equal = calls([query, key[..., :1, :].expand(key.shape), value], dtype=kind)
    is_mean = equal is not None and close(output, equal)
    if weights is not None and not calls.binding.sums and calls.binding.pools:
        is_mean = is_mean or close(weights, torch.full_like(weights, 1 / weights.shape[-1]))
    return "mean" if is_mean else "nan"


def mask_value(calls: Calls) -> float | None:
    """The finite score that hides a key, where a dot product reaches below it."""

    def share(score: float) -> float:
        query, key, value = calls.tensors()
        size = math.sqrt(score) / calls.callee.width**0.25
        # values as large as the query, which may be added to the output and normed with it
        one = size * (value * 0 + torch.linspace(1, 2, value.shape[-1]))
        query, key = query * 0 + size, key * 0 + size
        values = one * 0, one, torch.cat([one[..., :1, :] * 0, one[..., 1:, :]], -2)
        hidden, is_memory = hiding(calls, 1) or {}, calls.binding.shape == "memory"
        pairs = itertools.product((key, -key), values)
        outputs = [calls([query, k + v / 8 if is_memory else k, v], **hidden) for k, v in pairs]
        return share_of_last(outputs)

    found = least_size(share)
    return None if found is None else -found


def least_size(weight: Callable[[float], float]) -> float | None:
    """The size from which the weight of hidden keys is over a half; ``None`` for any and none."""
    lowest, highest = 6, 109
    if weight(2.0**lowest) > 0.5 or weight(2.0**highest) <= 0.5:
        return None
    while highest - lowest > 1:  # from some size on, every weight is over a half
        power = (lowest + highest) // 2
        lowest, highest = (lowest, power) if weight(2.0**power) > 0.5 else (power, highest)
    low, high = 2.0**lowest, 2.0**highest
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if weight(middle) > 0.5 else (middle, high)
    near = [n for n in (65504.0, float(f"{high:.2g}")) if abs(high - n) < 2e-3 * n]
    return near[0] if near else high


def share_of_last(outputs: Sequence[Tensor | None]) -> float:
    """The largest share that hidden keys have, of outputs in threes; 0 where there is none.

    Of three outputs the first is of values of 0, the second of 1, and the third of 1 for hidden
    keys alone: projections and biases may stand between the weights and the output.
    """
    shares = [0.0]
    for i in range(0, len(outputs), 3):
        none, every, hidden = outputs[i : i + 3]
        if none is None or every is None or hidden is None:
            return 0.0
        whole, own = (float((t - none).nan_to_num().abs().amax()) for t in (every, hidden))
        shares.append(own / whole if whole else 0.0)
    return max(shares)


def causality(calls: Calls) -> dict[str, Any]:
    """Whether no query sees later keys, though nobody asks."""
    seen, lower = calls.reach(5, 5), torch.ones(5, 5, dtype=torch.bool).tril()
    is_causal = seen is not None and torch.equal(seen, lower.expand(seen.shape))
    return {"causal": "always"} if is_causal else {}


def positions(calls: Calls) -> dict[str, Any]:
    """Whether the order of keys counts, or a query knows those before it, as in a recurrence."""
    query, key, value = calls.tensors()
    plain, turned = calls([query, key, value]), calls([query, swapped(key, -2), swapped(value, -2)])
    if plain is None or turned is None or calls.binding.square:
        return {}
    has_order = not close(plain, turned) or _recurs(calls, plain)
    return {"positions": "absolute"} if has_order else {}


def _recurs(calls: Calls, plain: Tensor) -> bool:
    """Whether a query changes the outputs of those behind it, and of none before it."""
    query, key, value = calls.tensors()
    changed = []
    for place in (0, -1):
        other = query.clone()
        other[..., place, :] *= -1.5
        moved = calls([other, key, value])
        if moved is None:
            return False
        changed.append((moved - plain).abs().amax(-1) > SHOWN)
    return bool(changed[0][..., 1:].any()) and not bool(changed[1][..., :-1].any())


def _of_others(calls: Calls) -> dict[str, Any]:
    """Whether what a call gets beside its tensors differs by head or by token."""
    values = calls.binding.values.values()
    axes = [each for value in values if isinstance(value, Given) for each in value.axes]
    axes += ["R" for value in values if isinstance(value, Fill) and "R" in value.axes]
    letters = {*"".join(axes)}
    found: dict[str, Any] = {"per_head": True} if "H" in letters else {}
    return found | ({"positions": "absolute"} if letters & {"L", "S", "R"} else {})


def coarseness(calls: Calls) -> dict[str, Any]:
    """Whether float64 is as coarse as float32, as where a softmax is computed in float32.

    Weights then sum to one no better than that, or keys in another order give other outputs.
    """
    both = calls.both(dtype="float64", **(hiding(calls, 2) or {}))
    if both is None:
        return {}
    if both[1] is not None and not calls.binding.sums:
        gap = float((both[1].sum(-1) - 1).abs().amax())
    else:
        query, key, value = calls.tensors()
        plain = calls(dtype="float64")
        turned = calls([query, key.roll(1, -2), value.roll(1, -2)], dtype="float64")
        if plain is None or turned is None or calls.binding.square:
            return {}
        gap = float((turned - plain).abs().amax() / plain.abs().amax())
    is_coarse = 64 * torch.finfo(torch.float64).eps < gap < 4 * torch.finfo(torch.float32).eps
    return {"internal_dtype": "float32"} if is_coarse else {}
