"""Questions about masks: polarity, causality, rows without keys, and what hidden slots may hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbench.calling.facts import least_size
from attnbench.calling.probing.probed_calls import ALLOWED, BATCH, HEADS, Answer, Calls, alike, same

ONE_ROW = "True = may attend, one row"
"""The answer about masks of which only those with one row for all queries are taken."""


def boolean_masks(calls: Calls) -> Answer:
    """What True says: the query may attend to the key, or the key is hidden."""
    if "attn_mask" not in calls.named:
        return calls.not_taken("no argument is a mask")
    base = calls.reach()
    if base is None:
        return calls.ambiguous(f"a call without a mask raises {calls.raised}")
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "True = may attend": lambda allowed: allowed,
        "True = hides": lambda allowed: ~allowed,
    }
    for shape in ((), (1, 1)):
        found = calls.reach(attn_mask=ALLOWED.reshape(*shape, *ALLOWED.shape))
        for value, form in forms.items():
            if same(found, form(ALLOWED) & base):
                calls.hide = partial(_shaped, form, shape)
                return calls.inferred(value, "the values that a mask (L, S) lets through")
        if same(found, base):
            return calls.not_taken("a mask (L, S) is taken, but hides nothing")
        if found is not None:
            return calls.ambiguous("it is taken, but what it hides is neither of the two")
    raised = calls.raised
    row = ALLOWED[:1]
    if same(calls.reach(attn_mask=row), row & base):
        calls.hide = lambda allowed: {"attn_mask": allowed[:1]}
        return calls.inferred(ONE_ROW, "a mask (1, S); (L, S) raises")
    return calls.not_taken(f"raises {raised}")


def _shaped(
    form: Callable[[Tensor], Tensor], shape: tuple[int, ...], allowed: Tensor
) -> dict[str, Any]:
    return {"attn_mask": form(allowed).reshape(*shape, *allowed.shape)}


def key_padding_masks(calls: Calls) -> Answer:
    """What True says in a mask ``(B, S)`` of padding."""
    if "key_padding_mask" not in calls.named:
        return calls.not_taken("no argument is a mask of padding")
    kept, base = torch.tensor([True, False, True, True, False]), calls.reach()
    if base is None:
        return calls.ambiguous(f"a call without a mask raises {calls.raised}")
    batch = BATCH if "H" in calls.layout else BATCH * HEADS
    for value, row in (("True = may attend", kept), ("True = hides", ~kept)):
        if same(calls.reach(key_padding_mask=row.expand(batch, 5)), kept & base):
            return calls.inferred(value, "the values that a mask (B, S) lets through")
    return calls.ambiguous(f"what it hides is neither of the two ({calls.raised})")


def floating_masks(calls: Calls) -> Answer:
    """Whether a floating mask is added to the scores."""
    if "attn_mask" not in calls.named:
        return calls.not_taken("no argument is a mask")
    base = calls.reach()
    bias = torch.zeros(3, 5).masked_fill(~ALLOWED, -math.inf)
    found = calls.reach(attn_mask=bias)
    if base is None or found is None:
        return calls.not_taken(f"raises {calls.raised}")
    if same(found, ALLOWED & base):
        tensors = calls.tensors()
        small = torch.zeros(3, 5)
        small[:, 0] = 1.0
        plain, moved = calls.weights(tensors), calls.weights(tensors, attn_mask=small)
        if plain is None or moved is None:
            return calls.ambiguous("the output does not show the weights")
        ratio = (moved[..., -1, 0] / moved[..., -1, 1]) / (plain[..., -1, 0] / plain[..., -1, 1])
        if torch.allclose(ratio, torch.tensor(math.e), 1e-2):
            if calls.hide is None:
                calls.hide = lambda allowed: {
                    "attn_mask": torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
                }
            return calls.inferred("added to the scores", "-inf hides, 1 multiplies by e")
    if same(calls.reach(attn_mask=ALLOWED.float()), ALLOWED & base):
        return calls.inferred("1 = may attend, 0 hides", "a mask of ones and zeros")
    return calls.ambiguous("it is taken, but neither -inf beside a bias nor 0 hides")


def causal_corner(calls: Calls) -> Answer:
    """Where the diagonal of causality ends if L and S differ."""
    square = torch.ones(4, 4, dtype=torch.bool).tril()
    if same(calls.reach(4, 4), square):
        if same(calls.reach(3, 5), torch.ones(3, 5, dtype=torch.bool).tril(2)):
            return calls.inferred("always", "without asking, no output sees the future")
        return calls.ambiguous("always at L=S=4, but at L=3, S=5 not as bottom_right")
    if "is_causal" not in calls.named:
        return calls.not_taken("no argument asks for it")
    given = {"is_causal": True}
    own, wide = calls.reach(4, 4, **given), calls.reach(3, 5, **given)
    every = torch.ones(3, 5, dtype=torch.bool)
    if not same(own, square):
        return calls.ambiguous("at L=S=4 it raises, or does not hide exactly the future")
    if wide is None:
        return calls.inferred("square", f"L=S=4 is taken, L=3 S=5 raises {calls.raised}")
    for value, diagonal in (("top_left", 0), ("bottom_right", 2)):
        if same(wide, every.tril(diagonal)):
            return calls.inferred(value, f"L=3, S=5: query 0 sees {1 + diagonal} of the keys")
    return calls.ambiguous("L=3, S=5: neither corner")


def empty_rows(calls: Calls) -> Answer:
    """What a row without keys gives."""
    causal = calls.answers["causal"].value == "bottom_right"
    given: dict[str, Any] = {"is_causal": True}
    if calls.hide is not None:
        found, given, remark = _row_of_masks(calls)
    elif causal:
        found = _row_without_keys(calls, **given)
        remark = calls.raised or ", the first of L=5, S=3 and causality"
    else:
        return calls.not_taken("no mask is known to hide")
    other = _other_rows(calls, found, given)
    if other is not None:
        return other
    if found == "nan":
        return calls.inferred("nan", "a row without keys is NaN")
    wide = _row_without_keys(calls, torch.float64, **given)
    if wide not in (found, "refused"):  # float32 takes a score beside -1e9 for none
        return calls.ambiguous(f"a row without keys is {found}, and {wide} in float64")
    if found == "refused":
        return calls.inferred(found, f"raises {remark}")
    if found in _ROWS:
        return calls.inferred(found, f"a row without keys is {_ROWS[found]}{remark}")
    if calls.answers["extra_keys"].value:
        return calls.inferred("nan", "its own keys fill the row: nothing is promised of it")
    return calls.ambiguous(f"a row without keys is {found}")


def _other_rows(calls: Calls, found: str, given: dict[str, Any]) -> Answer | None:
    """The answer if a call for weights, or causality, gives another row; ``None`` if none does."""
    others = {}
    if "return_weights" in calls.named:
        others["with or without its weights"] = {**given, "return_weights": True}
    if calls.answers["causal"].value == "bottom_right":
        others["by a mask or by causality"] = {"is_causal": True}
    for where, other in others.items():
        row = _row_without_keys(calls, **other)
        if row != found and "nan" in (found, row):
            return calls.inferred("nan", f"a row without keys is NaN, {where}")
        if row not in (found, "refused"):
            return calls.ambiguous(f"a row without keys is {found}, and {row} {where}")
    return None


_ROWS = {"zeros": "0", "mean": "the mean of all values"}


def _row_of_masks(calls: Calls) -> tuple[str, dict[str, Any], str]:
    """What a row without keys is, by masks of each form; the mask that shows it, and a remark."""
    assert calls.hide is not None
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[-1] = False
    if calls.hide(allowed)["attn_mask"].shape[-2] == 1:
        allowed[:] = False
    given = calls.hide(allowed)
    row = _row_without_keys(calls, **given)
    if row == "refused" or calls.answers["floating"].value != "added to the scores":
        return row, given, calls.raised
    boolean = given["attn_mask"].dtype == torch.bool
    mask = torch.zeros(3, 5).masked_fill(~allowed, -math.inf)
    by_adding = _row_without_keys(calls, attn_mask=mask)
    if by_adding == row and (boolean or row != "nan"):
        return row, given, ""
    low: dict[str, Any] = {"attn_mask": mask.clamp_min(torch.finfo(calls.passed).min)}
    lowest = _row_without_keys(calls, **low)
    if lowest == row if boolean else lowest != "nan":
        calls.low = True
        return lowest, low, f", of torch.finfo's min in a floating mask; -inf makes it {by_adding}"
    return (f"{row} by a boolean mask, {by_adding} by -inf" if boolean else row), given, ""


def _row_without_keys(calls: Calls, dtype: torch.dtype = torch.float32, **given: Any) -> str:
    """What the last row is, of causality the first: a value of the convention, or in words."""
    lengths, place = ((5, 3), 0) if "is_causal" in given else ((3, 5), -1)
    query, key, value = (tensor.to(dtype) for tensor in calls.tensors(*lengths))
    calls.moved = True
    # with equal keys, a module with projections of its own pools their mean, too
    other = [calls.output([query, k, value]) for k in (key[..., :1, :].expand(key.shape), key)]
    found = calls.output([query, key, value], **given)
    calls.moved = False
    if found is None:
        return "refused"
    row = found[..., place, :]
    if bool(row.isnan().all()):
        return "nan"
    if bool((row == 0).all()):
        return "zeros"
    equal, plain = (full is not None and alike(row, full[..., place, :]) for full in other)
    if equal or alike(row, value.mean(-2)):
        return "mean"
    return "as if nothing were hidden" if plain else "neither 0, NaN nor the mean"


def hidden_slots(calls: Calls) -> Answer:
    """Whether hidden keys and values may hold NaN."""
    if calls.hide is None:
        return calls.not_taken("no mask is known to hide")
    allowed = torch.ones(3, 5, dtype=torch.bool)
    allowed[:, 3:] = False
    mask = calls.hide(allowed)
    query, key, value = calls.tensors()
    for tensor, part in ((value, "value"), (key, "key")):
        tensor[..., 3:, :] = math.nan
        found = calls.output([query, key, value], **mask)
        if found is None or not bool(found.isfinite().all()):
            return calls.inferred("finite", f"NaN in a hidden {part} reaches the output")
    if mask["attn_mask"].dtype != torch.bool:
        return calls.inferred("finite", "a floating mask promises nothing about NaN")
    return calls.inferred("any", "NaN in hidden keys and values reaches no output")


def mask_value(calls: Calls) -> Answer:
    """The number that stands for minus infinity."""
    factor = calls.slope(4)
    if calls.hide is None or factor is None:
        return calls.not_taken("no mask is known to hide, or the scores are not q·k")
    allowed = (torch.arange(5) < 1).expand(3, 5)
    hide, unit = calls.hide, calls.slope(8) or 1.0
    if calls.low:
        low = torch.finfo(calls.passed).min
        return calls.inferred(low, "it hides, and gives a row without keys a number")
    if hide(allowed)["attn_mask"].dtype != torch.bool:
        return calls.not_taken("a floating mask holds the caller's own number")

    def seen(seen_score: float, hidden_score: float) -> float:
        query, key, value = calls.tensors()
        query[:], key[:], value[:] = 1.0, hidden_score, 0.0
        key[..., 0, :], value[..., 1:, :] = seen_score, 1.0
        found = calls.output([query, key / (8 * unit), value], **hide(allowed))
        return 0.0 if found is None else float(found[..., -1, :].nan_to_num().amax())

    filled = least_size(lambda size: seen(-size, -size))
    if filled is not None and seen(-1.5 * filled, -1.5 * filled) > 0.99:
        return calls.inferred(-filled, f"a key with q·k = -{filled:g} loses to hidden ones")
    added = least_size(lambda size: seen(0.0, size))
    if added is not None:
        return calls.inferred(-added, f"a hidden key with q·k = {added:g} is seen")
    if calls.answers["empty_rows"].value != "nan":
        return calls.ambiguous("-inf, or a number below -6e32 such as torch.finfo's min")
    return calls.inferred(
        -math.inf, "hidden keys stay hidden at scores of ±6e32, an empty row is NaN"
    )
