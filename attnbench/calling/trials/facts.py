"""What small calls of a bound callee show: its conventions, sizes, dtypes and formula."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.binding import Binding, Given
from attnbench.calling.roles import role_of
from attnbench.calling.signature import call_arguments
from attnbench.calling.trials.formulas import SCALED_DOT, formula_of, scaled_dot_rows
from attnbench.calling.trials.projections import projected_of
from attnbench.calling.trials.small_calls import KEYS, QUERIES, Callee, Calls, close
from attnbench.calling.trials.trial_layouts import axes_of, folds, parts_of
from attnbench.errors import StyleError
from attnbench.specs import DTYPES


@dataclass
class Facts:
    """The fields of a spec that calls show, remarks, and shapes of what else a call gives."""

    fields: dict[str, Any] = field(default_factory=dict)
    conventions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def facts_of(callee: Callee, binding: Binding) -> Facts:
    """Ask everything of a bound callee."""
    calls, found = Calls(callee, binding), Facts()
    raised = _dtypes(calls)
    if len(raised) == len(DTYPES):
        error = raised["float32"]
        name = type(callee.at()).__name__
        raise StyleError(f"{name}: calls of other sizes than those that were tried raise {error}")
    if raised:
        kinds, error = " and ".join(raised), next(iter(raised.values()))
        found.notes.append(f"not tried in {kinds}, where it raises {error}")
        found.fields["dtypes"] = tuple(name for name in DTYPES if name not in raised)
    found.others += _others(calls)
    if found.others:
        found.notes.append(f"it gives {' and '.join(found.others)} as well, not looked at")
    if calls.is_random():
        found.notes.append("**it draws random numbers in evaluation, as dropout does**")
    if calls.is_layer:
        _layer(calls, found)
        return found
    for ask in (_masks, _hidden, causality, positions, coarseness):
        found.conventions.update(ask(calls))
    if found.conventions.get("empty_rows") == "nan" and _is_finite_without_keys(calls):
        found.notes.append(_NEITHER)
    _formula(calls, found)
    return found


def _others(calls: Calls) -> list[str]:
    """The shapes of what a call gives beside the output, weights and scores."""
    binding = calls.binding
    known = {where for found in (binding.output, binding.weights) if found for where in found[:1]}
    shapes = []
    for where, part in parts_of(calls.result(calls.tensors())[0], None):
        axes = axes_of(part.shape, calls.callee.sides)
        if where not in known and part.is_floating_point() and axes[1:] and axes[-1] in "E?":
            shapes.append(f"a tensor ({', '.join(axes)})")
    return shapes


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


def _layer(calls: Calls, found: Facts) -> None:
    """What is asked of hidden states alone."""
    binding, tensors = calls.binding, calls.tensors()
    seen = calls.reach() if "Y" not in binding.layout else None
    if seen is not None:
        causal = not bool(seen.triu(1).any())
        found.fields["causal"] = causal
        mixes = not causal or bool(seen.tril(-1).any())
        told = f"{'' if causal else 'not '}causal" if mixes else "no token reaches another"
        if mixes and not causal and _says_causal(calls):
            told = "**not causal, though it says so**"
        found.notes.insert(0, f"{told} (found by trying)")
        _asked_of_tokens(calls, found, causal and mixes)
        if not binding.memory and not binding.tokens:
            projected, told = projected_of(calls, causal)
            found.notes += [told] if told else []
            found.fields |= {} if projected is None else {"reference": projected.rows}
    accepts = ("padding_mask",) if binding.masks else ()
    found.fields["accepts"] = accepts + (("source",) if binding.memory else ())
    if binding.masks:
        nothing = torch.ones(tensors[0].shape[:2], dtype=torch.bool)
        nothing[-1] = False
        output = calls(padding_mask=nothing)
        if output is None or not bool(output.isfinite().all()):
            found.conventions["empty_rows"] = "nan"
    if (parts := folds(calls)) > 1:
        found.notes.append(f"its output of {parts}·E features is folded to E")


def _says_causal(calls: Calls) -> bool:
    """Whether a module is called causal, or has a flag that says so, and no mask can make it."""
    binding, callee = calls.binding, calls.callee.at()
    taken = (*binding.roles, *binding.left, *binding.unread)
    if any(role_of(name, "forward") == "mask" for name in taken):
        return False
    flags = [name for name, value in getattr(callee, "__dict__", {}).items() if value is True]
    named = call_arguments(callee) or ()
    flags += [each.name for each in named if each.default is True and each.name in binding.left]
    is_called = "causal" in type(callee).__name__.lower()
    return is_called or any(role_of(name, "forward") == "causal" for name in flags)


def _padding(calls: Calls) -> dict[str, Any]:
    """A mask of padding that leaves the first tokens, of a layer that takes one."""
    if not calls.binding.masks:
        return {}
    hidden = calls.tensors()[0]
    return {"padding_mask": torch.arange(hidden.shape[1]).expand(hidden.shape[:2]) < 2}


def _asked_of_tokens(calls: Calls, found: Facts, causal: bool) -> None:
    """What no file can declare, asked with numbers: whether positions count, and sums are one."""
    given = [v for v in calls.binding.values.values() if isinstance(v, Given)]
    if given:  # what an example gives may belong to its tokens, which stay in their order
        if any("L" in axes for each in given for axes in each.axes):
            found.conventions["positions"] = "absolute"
        return
    tensors, plain = calls.tensors(), calls()
    alike = calls([tensor * 0 + tensor[:, :1] for tensor in tensors])
    if plain is not None and not causal and not calls.binding.tokens:
        turned = calls([tensors[0].roll(1, 1), *tensors[1:]])
        if turned is not None and close(turned.roll(-1, 1), plain):
            found.conventions["positions"] = "none"
        elif turned is not None:
            off = float((turned.roll(-1, 1) - plain).abs().amax() / plain.abs().amax())
            roles = {r for n, r in calls.binding.roles.items() if calls.binding.values.get(n)}
            known = roles & {"rotary", "cos", "sin", "positions", "embedded_positions"}
            other = "" if known else ", or tokens and heads are split wrongly"
            found.notes.append(
                f"with its tokens in another order, its outputs are off by {off:.0%}: positions "
                f"count{other}"
            )
            return
    if alike is not None and not close(alike, alike[:, :1]):
        said = "where all tokens are alike, its outputs differ: positions count, or weights do not"
        found.notes.append(f"{said} sum to one")


def most_tokens(calls: Calls) -> int:
    """The most queries, and as many keys, of a call that does not raise; 0 without a limit.

    A call of many that raises is a limit that the code has, as a table of positions; one of few
    that raises is wrong. What it raises beyond is left in ``calls.raised``.
    """

    def raises(count: int) -> bool:
        few = 1 if calls.binding.one_query else QUERIES
        return any(calls(calls.tensors(*sizes)) is None for sizes in ((few, count), (count, KEYS)))

    counts = range(max(QUERIES, KEYS), _LONGEST + 1)
    if raises(counts[0]) or not raises(_LONGEST):
        return 0
    most = counts[bisect.bisect(counts, False, key=raises) - 1]
    raises(most + 1)
    return most


_LONGEST = 1100
"""The number of keys in the longest cases."""


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
    if low is not None and any(True for _ in _parameters(calls)):
        low = max(low, _ABOVE)  # its scores are not q·k, and either sign may lie far from zero
    return found | ({} if low is None else {"mask_value": low})


_NEITHER = "a row without keys gives neither zeros nor the mean of all values, and is not looked at"


def _is_finite_without_keys(calls: Calls) -> bool:
    output = calls(**(hiding(calls, 0) or {}))
    return output is not None and bool(output.isfinite().all())


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


_ABOVE = -999_999.0


def _parameters(calls: Calls) -> Any:
    made = calls.callee.at()
    return made.parameters() if isinstance(made, nn.Module) else ()


def empty_rows(calls: Calls, nothing: Mapping[str, Any]) -> str:
    """What a row without keys gives: a value of the convention."""
    both = calls.both(**nothing)
    if both is None:
        return "refused"
    output, weights = both
    if bool(output.isnan().any()):
        return "nan"
    if bool((output == 0).all()):
        return "zeros"
    query, key, value = calls.tensors()
    equal = calls([query, key[..., :1, :].expand(key.shape), value])
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
        hidden = hiding(calls, 1) or {}
        outputs = [calls([query, keys, v], **hidden) for keys in (key, -key) for v in values]
        return share_of_last(outputs)

    found = least_size(share)
    return None if found is None else -found


def causality(calls: Calls) -> dict[str, Any]:
    """Whether no query sees later keys, though nobody asks."""
    seen, lower = calls.reach(5, 5), torch.ones(5, 5, dtype=torch.bool).tril()
    is_causal = seen is not None and torch.equal(seen, lower.expand(seen.shape))
    return {"causal": "always"} if is_causal else {}


def positions(calls: Calls) -> dict[str, Any]:
    """Whether the order of keys counts."""
    query, key, value = calls.tensors()
    plain, turned = calls([query, key, value]), calls([query, key.roll(1, -2), value.roll(1, -2)])
    if plain is None or turned is None or calls.binding.square:
        return {}
    return {} if close(plain, turned) else {"positions": "absolute"}


def _dtypes(calls: Calls) -> dict[str, str]:
    """The dtypes in which it cannot be called, and what it raises."""
    raised: dict[str, str] = {}
    given = _padding(calls) if calls.is_layer else hiding(calls, 2) or {}
    for name in DTYPES:
        if calls(dtype=name, **given) is None:
            raised[name] = calls.raised
    return raised


def _formula(calls: Calls, found: Facts) -> None:
    """Laws, what it accepts, and the formula where it is that of scaled dot products."""
    accepts = (
        ["valid_lens"] if any(m.says == "lengths" for m in calls.binding.masks.values()) else []
    )
    both = calls.both()
    query, key, value = calls.tensors()
    constant = calls([query, key, value * 0 + 3])
    if both is None or constant is None:
        return
    output, weights = both
    pools = close(constant, value[..., :1, :] * 0 + 3)
    if weights is not None:
        pools = pools and close(output, weights @ value)
        accepts.append("return_weights")
    found.fields["accepts"] = tuple(accepts)
    if pools:
        found.fields["laws"] = ("pools_values",)
    if pools and is_scaled_dot(calls):
        found.fields |= {"reference": scaled_dot_rows, "formula": SCALED_DOT["formula"]}
    elif pools and (formula := formula_of(calls)) is not None:
        found.fields |= {"reference": formula.rows, "formula": formula.spec.formula}
        found.notes.insert(0, f"it computes {formula}")
    else:
        found.notes.append("no reference: a wrong but self-consistent formula would pass")


def is_scaled_dot(calls: Calls) -> bool:
    """Whether it computes ``softmax(q·k / √E) v``."""
    query, key, value = calls.tensors()
    if query.shape[-1] != key.shape[-1]:
        return False
    output = calls([query, key, value])
    plain = nn.functional.scaled_dot_product_attention(query, key, value)
    return output is not None and close(output, plain)


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
