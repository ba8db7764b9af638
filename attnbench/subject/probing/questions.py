"""Questions about conventions, each answered by calls of which one answer alone explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from attnbench.subject.probing.probed_calls import BATCH, HEADS, LAYOUTS, Answer, Calls
from attnbench.subject.probing.returned_parts import (
    returned_lse,
    returned_weights,
)
from attnbench.subject.result_form import output_and_more

__all__ = ["QUESTIONS", "find_layout"]

_ALLOWED = torch.tensor([[1, 0, 1, 0, 1], [0, 1, 1, 0, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)
_WINDOWS = ("window_size", "window", "sliding_window")


def _same(got: Tensor | None, expected: Tensor) -> bool:
    return got is not None and torch.equal(got, expected)


def find_layout(calls: Calls) -> Answer:
    """The layout in which a head reads its own values, at every length, and no other head's."""
    found = [layout for layout in LAYOUTS if _fits(calls, layout)]
    four = found[:1] if len([one for one in found if "H" in one]) == 1 else found
    if len(four) != 1:
        why = f"{' and '.join(found)} fit" if found else f"none fits ({calls.raised or 'shape'})"
        return Answer.ambiguous("layout", why)
    calls.layout = four[0]
    return Answer.inferred("layout", four[0], "L=3, S=5: one head's values change its outputs only")


def _fits(calls: Calls, layout: str) -> bool:
    calls.layout = layout
    query, key, value = calls.tensors()
    before = calls.output([query, key, value])
    other = value.clone()
    other[0, 1] += 2
    after = calls.output([query, key, other])
    if before is None or after is None:
        return False
    changed = ((after - before).abs() > 1e-6).flatten(2).any(-1)
    own = torch.zeros(BATCH, HEADS, dtype=torch.bool)
    own[0, 1] = True
    return torch.equal(changed, own)


def _boolean(calls: Calls) -> Answer:
    name = "boolean mask"
    if "attn_mask" not in calls.named:
        return Answer.not_taken(name, "no argument is a mask")
    base = calls.reach()
    if base is None:
        return Answer.ambiguous(name, f"a call without a mask raises {calls.raised}")
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "True = may attend": lambda allowed: allowed,
        "True = hides": lambda allowed: ~allowed,
    }
    for shape in ((), (1, 1)):
        found = calls.reach(attn_mask=_ALLOWED.reshape(*shape, *_ALLOWED.shape))
        for value, form in forms.items():
            if _same(found, form(_ALLOWED) & base):
                calls.hide = partial(_shaped, form, shape)
                return Answer.inferred(name, value, "the values that a mask (L, S) lets through")
        if found is not None:
            return Answer.ambiguous(name, "it is taken, but what it hides is neither of the two")
    raised = calls.raised
    row = _ALLOWED[:1]
    if _same(calls.reach(attn_mask=row), row & base):
        calls.hide = lambda allowed: {"attn_mask": allowed[:1]}
        return Answer.inferred(name, "True = may attend, one row", "a mask (1, S); (L, S) raises")
    return Answer.not_taken(name, f"raises {raised}")


def _shaped(
    form: Callable[[Tensor], Tensor], shape: tuple[int, ...], allowed: Tensor
) -> dict[str, Any]:
    return {"attn_mask": form(allowed).reshape(*shape, *allowed.shape)}


def _floating(calls: Calls) -> Answer:
    name = "floating mask"
    if "attn_mask" not in calls.named:
        return Answer.not_taken(name, "no argument is a mask")
    base = calls.reach()
    bias = torch.zeros(3, 5).masked_fill(~_ALLOWED, -math.inf)
    found = calls.reach(attn_mask=bias)
    if base is None or found is None:
        return Answer.not_taken(name, f"raises {calls.raised}")
    if _same(found, _ALLOWED & base):
        tensors = calls.tensors()
        small = torch.zeros(3, 5)
        small[:, 0] = 1.0
        plain, moved = calls.weights(tensors), calls.weights(tensors, attn_mask=small)
        if plain is None or moved is None:
            return Answer.ambiguous(name, "the output does not show the weights")
        ratio = (moved[..., -1, 0] / moved[..., -1, 1]) / (plain[..., -1, 0] / plain[..., -1, 1])
        if not torch.allclose(ratio, torch.tensor(math.e), 1e-2):
            return Answer.ambiguous(name, "-inf hides, but 1 does not multiply a weight by e")
        if calls.hide is None:
            calls.hide = lambda allowed: {
                "attn_mask": torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
            }
        return Answer.inferred(name, "added to the scores", "-inf hides, 1 multiplies by e")
    if _same(calls.reach(attn_mask=_ALLOWED.float()), _ALLOWED & base):
        return Answer.inferred(name, "1 = may attend, 0 hides", "a mask of ones and zeros")
    return Answer.ambiguous(name, "it is taken, but -inf does not hide, nor does 0")


def _causal(calls: Calls) -> Answer:
    name, square = "causal corner", torch.ones(4, 4, dtype=torch.bool).tril()
    if _same(calls.reach(4, 4), square):
        return Answer.inferred(name, "always", "L=S=4 without asking: no output sees the future")
    if "is_causal" not in calls.named:
        return Answer.not_taken(name, "no argument asks for it")
    given = {"is_causal": True}
    wide, own = calls.reach(3, 5, **given), calls.reach(4, 4, **given)
    every = torch.ones(3, 5, dtype=torch.bool)
    if not _same(own, square):
        return Answer.ambiguous(name, "at L=S=4 the future is not hidden, or the call raises")
    if wide is None:
        return Answer.inferred(name, "square", f"L=S=4 is taken, L=3 S=5 raises {calls.raised}")
    for value, diagonal in (("top_left", 0), ("bottom_right", 2)):
        if _same(wide, every.tril(diagonal)):
            return Answer.inferred(name, value, f"L=3, S=5: query 0 sees {1 + diagonal} keys")
    return Answer.ambiguous(name, "L=3, S=5: neither corner")


def _empty_rows(calls: Calls) -> Answer:
    name = "empty rows"
    if calls.hide is None:
        return Answer.not_taken(name, "no mask is known to hide")
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[-1] = False
    if calls.hide(allowed)["attn_mask"].shape[-2] == 1:
        allowed[:] = False
    tensors = calls.tensors()
    found, plain = calls.output(tensors, **calls.hide(allowed)), calls.output(tensors)
    if found is None:
        return Answer.inferred(name, "refused", f"raises {calls.raised}")
    mask = calls.hide(allowed)["attn_mask"]
    if mask.dtype != torch.bool:
        low = calls.output(tensors, attn_mask=mask.clamp_min(torch.finfo(mask.dtype).min))
        if low is None or not torch.allclose(low, found, equal_nan=True):
            return Answer.ambiguous(name, "-inf and torch.finfo's min give different rows")
    row, mean = found[..., -1, :], tensors[2].mean(-2)
    if bool(row.isnan().all()):
        return Answer.inferred(name, "nan", "a row without keys is NaN")
    if bool((row == 0).all()):
        return Answer.inferred(name, "zeros", "a row without keys is 0")
    if torch.allclose(row, mean, 1e-3, 1e-4):
        return Answer.inferred(name, "mean", "a row without keys is the mean of all values")
    unmasked = plain is not None and torch.allclose(row, plain[..., -1, :], 1e-3, 1e-4)
    said = "as if nothing were hidden" if unmasked else "neither 0, NaN nor the mean"
    return Answer.ambiguous(name, f"a row without keys is {said}")


def _hidden_slots(calls: Calls) -> Answer:
    name = "hidden slots"
    if calls.hide is None:
        return Answer.not_taken(name, "no mask is known to hide")
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[:, 3:] = False
    mask = calls.hide(allowed)
    if mask["attn_mask"].dtype != torch.bool:
        return Answer.not_taken(name, "a floating mask promises nothing about NaN")
    query, key, value = calls.tensors()
    for tensor, told in ((value, "value"), (key, "key")):
        tensor[..., 3:, :] = math.nan
        found = calls.output([query, key, value], **mask)
        if found is None or not bool(found.isfinite().all()):
            return Answer.inferred(name, "finite", f"NaN in a hidden {told} reaches the output")
    return Answer.inferred(name, "any", "NaN in hidden keys and values reaches no output")


def _mask_value(calls: Calls) -> Answer:
    name, factor = "mask value", calls.slope(4)
    if calls.hide is None or factor is None:
        return Answer.not_taken(name, "no mask is known to hide, or the scores are not q·k")
    allowed = (torch.arange(5) < 1).expand(3, 5)
    hide = calls.hide
    if hide(allowed)["attn_mask"].dtype != torch.bool:
        return Answer.not_taken(name, "a floating mask holds the caller's own number")

    def seen(seen_score: float, hidden_score: float) -> float:
        query, key, value = calls.tensors()
        query[:], key[:], value[:] = 1.0, hidden_score, 0.0
        key[..., 0, :], value[..., 1:, :] = seen_score, 1.0
        unit = calls.slope(8) or 1.0
        found = calls.output([query, key / (8 * unit), value], **hide(allowed))
        return 0.0 if found is None else float(found[..., -1, :].nan_to_num().amax())

    filled = _least(lambda size: seen(-size, -size))
    if filled is not None and seen(-1.5 * filled, -1.5 * filled) > 0.99:
        return Answer.inferred(name, -filled, f"a key with q·k = -{filled:g} loses to hidden ones")
    added = _least(lambda size: seen(0.0, size))
    if added is not None:
        return Answer.inferred(name, -added, f"a hidden key with q·k = {added:g} is seen")
    if _empty_rows(calls).value != "nan":
        return Answer.ambiguous(name, "-inf, or a number below -6e32 such as torch.finfo's min")
    return Answer.inferred(
        name, -math.inf, "hidden keys stay hidden at scores of ±6e32, an empty row is NaN"
    )


def _least(weight: Callable[[float], float]) -> float | None:
    """The size from which the weight of hidden keys is over a half; ``None`` for any and none."""
    powers = [2.0**n for n in range(6, 110)]
    high = next((power for power in powers if weight(power) > 0.5), None)
    if high is None or high == powers[0]:
        return None
    low = high / 2
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if weight(middle) > 0.5 else (middle, high)
    near = [n for n in (65504.0, float(f"{high:.2g}")) if abs(high - n) < 2e-3 * n]
    return near[0] if near else high


def _scale(calls: Calls) -> Answer:
    name, found = "scale", (calls.slope(4), calls.slope(16))
    if found[0] is None or found[1] is None:
        return Answer.ambiguous(name, "the scores that the weights show are no multiple of q·k")
    for value, power in (("1/sqrt(E)", 0.5), ("1", 0.0), ("1/E", 1.0)):
        if all(abs(f * e**power - 1) < 1e-2 for f, e in zip(found, (4, 16), strict=True)):
            return Answer.inferred(name, value, "the ratios of weights at E=4 and E=16")
    return Answer.inferred(
        name, f"{found[0]:.4g} at E=4, {found[1]:.4g} at E=16", "the ratios of weights"
    )


def _takes_scale(calls: Calls) -> Answer:
    name = "scale="
    if "scale" not in calls.named:
        return Answer.not_taken(name, "no argument is a scale")
    found = calls.slope(4, scale=0.3)
    if found is not None and abs(found - 0.3) < 3e-3:
        return Answer.inferred(name, "replaces the scale", "scale=0.3 gives 0.3·q·k")
    return Answer.ambiguous(
        name, f"scale=0.3 gives {found if found is None else f'{found:.3g}'}·q·k"
    )


def _groups(calls: Calls) -> Answer:
    name = "grouped heads"
    query, key, value = calls.tensors(heads=2)
    given = {"enable_gqa": True} if "enable_gqa" in calls.named else {}
    before = calls.output([query, key, value], **given)
    if before is None or calls.layout in ("(B, L, E)", "(L, B, E)"):
        return Answer.not_taken(name, "two key heads for four query heads are refused")
    value[:, 0] += 2
    after = calls.output([query, key, value], **given)
    assert after is not None
    changed = ((after - before).abs() > 1e-6).flatten(2).any(-1)[0].nonzero().flatten().tolist()
    value_of = {(0, 1): "neighbours", (0, 2): "stride"}.get(tuple(changed))
    if value_of is None:
        return Answer.ambiguous(name, f"query heads {changed} read key head 0 of 2")
    return Answer.inferred(name, value_of, f"query heads {changed} read key head 0 of 2")


def _window(calls: Calls) -> Answer:
    name = "window"
    own = next((one for one in _WINDOWS if one in calls.names), None)
    if own is None:
        return Answer.not_taken(name, "no argument is a window")
    ahead = torch.arange(6) - torch.arange(6)[:, None]
    pair = {
        "(left, right), own key besides": (ahead >= -2) & (ahead <= 1),
        "(left, right), own key counted": (ahead > -2) & (ahead < 1),
    }
    one = {
        "one number of keys, own counted, causal": (ahead > -2) & (ahead <= 0),
        "one number of keys before the own, causal": (ahead >= -2) & (ahead <= 0),
        "one distance, inclusive": ahead.abs() <= 2,
        "one distance, exclusive": ahead.abs() < 2,
    }
    causal = {"is_causal": True} if "is_causal" in calls.named else {}
    for argument, meanings in (((2, 1), pair), (2, one)):
        found = calls.reach(6, 6, **{own: argument})
        both = calls.reach(6, 6, **{own: argument}, **causal) if causal else None
        for value, expected in meanings.items():
            if _same(found, expected):
                return Answer.inferred(name, value, f"L=S=6: the keys that {own}={argument} leaves")
        if _same(found, torch.ones_like(ahead, dtype=torch.bool)) and both is not None:
            fit = [v for v, e in meanings.items() if _same(both, e & (ahead <= 0))]
            return Answer.ambiguous(name, f"only with {causal}: {' or '.join(fit) or 'neither'}")
        if found is not None:
            return Answer.ambiguous(name, f"what {own}={argument} leaves is no known meaning")
    return Answer.ambiguous(name, f"neither {own}=(2, 1) nor {own}=2 is taken")


def _softcap(calls: Calls) -> Answer:
    name = "softcap"
    if "softcap" not in calls.named:
        return Answer.not_taken(name, "no argument caps the scores")
    if calls.hide is not None:
        found, base = calls.reach(**calls.hide(_ALLOWED), softcap=1.0), _ALLOWED
    elif "is_causal" in calls.named:
        base = torch.ones(4, 4, dtype=torch.bool).tril()
        found = calls.reach(4, 4, is_causal=True, softcap=1.0)
    else:
        return Answer.ambiguous(name, "no mask is known to hide")
    if _same(found, base):
        return Answer.inferred(name, "before the mask", "hidden keys stay hidden under softcap=1")
    if found is not None and bool(found.all()):
        return Answer.inferred(name, "after the mask", "softcap=1 brings hidden keys back")
    return Answer.ambiguous(name, "what a mask hides under softcap=1 is unclear")


def _dropout(calls: Calls) -> Answer:
    name = "dropout"
    if "dropout_p" not in calls.named:
        return Answer.not_taken(name, "no argument drops")
    tensors = calls.tensors()
    calls.training = True
    plain, dropped = calls.weights(tensors), calls.weights(tensors, dropout_p=0.5)
    ones = calls.output([*tensors[:2], torch.ones_like(tensors[2])], dropout_p=0.5)
    calls.training = False
    if plain is None or dropped is None or ones is None:
        return Answer.ambiguous(name, f"dropout_p=0.5 raises {calls.raised}")
    if torch.allclose(plain, dropped):
        return Answer.ambiguous(name, "dropout_p=0.5 changes nothing")
    if torch.allclose(ones, torch.ones_like(ones), 1e-4):
        return Answer.inferred(name, "on scores", "weights change, and still sum to one")
    if not torch.allclose(ones, ones[..., :1].expand_as(ones), 1e-4):
        return Answer.inferred(name, "on the output", "values of ones: columns of a row differ")
    kept = dropped != 0
    for value, factor in (("on weights, rescaled", 2.0), ("on weights, not rescaled", 1.0)):
        if torch.allclose(dropped[kept], factor * plain[kept], 1e-3):
            return Answer.inferred(name, value, f"a kept weight is {factor:g} times its own")
    return Answer.ambiguous(name, "kept weights are neither 1 nor 2 times their own")


def _internal_dtype(calls: Calls) -> Answer:
    name = "internal dtype"
    wide = [tensor.double() for tensor in calls.tensors(4, 4)]
    found = calls.weights(wide)
    if found is None or found.dtype != torch.float64:
        return Answer.ambiguous(name, f"float64 is not taken, or not returned ({calls.raised})")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if torch.equal(found.to(dtype).double(), found):
            value = str(dtype).removeprefix("torch.")
            return Answer.inferred(name, value, f"all weights of a float64 call fit {value}")
    moved = [wide[0], wide[1] * (1 + 1e-11), wide[2]]
    if _same(calls.weights(moved), found):
        return Answer.ambiguous(name, "narrower than float64 at some step before the weights")
    return Answer.inferred(name, None, "1e-11 of a float64 key changes the weights")


def _gradients(calls: Calls) -> Answer:
    name = "gradients"
    tensors = [tensor.requires_grad_() for tensor in calls.tensors()]
    found, _ = output_and_more(calls.result(tensors))
    if not isinstance(found, Tensor):
        return Answer.ambiguous(name, f"raises {calls.raised}")
    return Answer.inferred(name, found.requires_grad, "whether an output requires grad")


QUESTIONS: Mapping[str, Callable[[Calls], Answer]] = MappingProxyType(
    {
        "boolean": _boolean,
        "floating": _floating,
        "causal": _causal,
        "empty_rows": _empty_rows,
        "hidden_slots": _hidden_slots,
        "mask_value": _mask_value,
        "scale": _scale,
        "takes_scale": _takes_scale,
        "groups": _groups,
        "window": _window,
        "softcap": _softcap,
        "lse": returned_lse,
        "dropout": _dropout,
        "weights": returned_weights,
        "internal_dtype": _internal_dtype,
        "gradients": _gradients,
    }
)
"""What is asked once the layout is known, in this order: later ones use the form of masks."""
