"""Questions about conventions, each answered by calls of which one answer alone explains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.probing.mask_questions import (
    boolean_masks,
    causal_corner,
    empty_rows,
    floating_masks,
    hidden_slots,
    key_padding_masks,
    mask_value,
)
from attnbench.calling.probing.probed_calls import (
    ALLOWED,
    BATCH,
    HEADS,
    LAYOUTS,
    Answer,
    Calls,
    alike,
    same,
)
from attnbench.calling.probing.returned_parts import empty_lse, returned_lse, returned_weights
from attnbench.calling.probing.score_questions import (
    grouped_heads,
    scale_argument,
    scale_of_scores,
    softcap_order,
    window_edges,
)
from attnbench.calling.results import output_and_more

_VARIED = 16
"""Different weights, of 128, below which nothing tells in which dtype they were computed."""


_PASSED = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of calls, of which the first that is taken asks all questions."""

_NEUTRAL: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda query, key: None,
    lambda query, key: torch.zeros(query.shape[-2], key.shape[-2]),
    lambda query, key: torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool),
    lambda query, key: torch.zeros(query.shape[-2], key.shape[-2], dtype=torch.bool),
)
"""Masks that hide nothing, for one that has to be given."""


def _layout(calls: Calls) -> Answer:
    """The layout in which a head reads its own values, at every length, and no other head's."""
    raised = ""
    for dtype, usual in product(_PASSED, _usual(calls)):
        calls.passed, calls.usual, found, complaints = dtype, usual, list[str](), list[str]()
        for layout in LAYOUTS:
            found += [layout] if _fits(calls, layout) else []
            complaints += [calls.raised or calls.other]
        if found:
            break
        if dtype == _PASSED[0]:
            raised = next(filter(None, complaints), "")
    four = found[:1] if len([one for one in found if "H" in one]) == 1 else found
    if len(four) != 1:
        why = f"{' and '.join(found)} fit" if found else f"none fits ({raised})"
        return calls.ambiguous(why)
    calls.layout = four[0]
    return calls.inferred(four[0], "L=3, S=5: one head's values change its outputs only")


def _usual(calls: Calls) -> Iterator[dict[str, Callable[[Tensor, Tensor], Any]]]:
    """Yield what a call may need: nothing, no causality, a scale, and a mask that hides nothing."""
    yield {}
    given: dict[str, Callable[[Tensor, Tensor], Any]] = {}
    if "is_causal" in calls.named:
        given["is_causal"] = lambda query, key: False
    if "scale" in calls.required:
        given["scale"] = lambda query, key: query.shape[-1] ** -0.5
    if "attn_mask" not in calls.required:
        yield given
        return
    for mask in _NEUTRAL:
        yield {**given, "attn_mask": mask}


def _fits(calls: Calls, layout: str) -> bool:
    calls.layout = layout
    query, key, value = calls.tensors()
    before = calls.output([query, key, value])
    other = value.clone()
    other[0, 1] += 2
    after = calls.output([query, key, other])
    if before is None or after is None:
        return False
    if "attn_mask" in calls.usual and alike(before, calls.output([-query, key, value])):
        return False  # it hides all keys alike
    changed = ((after - before).abs() > 1e-6).flatten(2).any(-1)
    own = torch.zeros(BATCH, HEADS, dtype=torch.bool)
    own[0, 1] = True
    return torch.equal(changed, own)


def _dropout(calls: Calls) -> Answer:
    if "dropout_p" not in calls.named:
        return calls.not_taken("no argument drops")
    tensors = calls.tensors()
    calls.training, form = True, ""
    share: float | nn.Module = 0.5
    plain, dropped = calls.weights(tensors), calls.weights(tensors, dropout_p=share)
    if dropped is None:  # as in the annotated transformer
        share, form = nn.Dropout(0.5), ", by a module"
        dropped = calls.weights(tensors, dropout_p=share)
    ones = calls.output([*tensors[:2], torch.ones_like(tensors[2])], dropout_p=share)
    calls.training = False
    if plain is None or dropped is None or ones is None:
        return calls.ambiguous(f"dropout_p=0.5 raises {calls.raised}")
    if torch.allclose(plain, dropped):
        return calls.ambiguous("dropout_p=0.5 changes nothing")
    if torch.allclose(ones, torch.ones_like(ones), 1e-2):  # it may compute in a half type
        return calls.inferred("on scores", "weights change, and still sum to one")
    if not torch.allclose(ones, ones[..., :1].expand_as(ones), 1e-2):
        return calls.inferred("on the output", "values of ones: columns of a row differ")
    kept = dropped != 0
    if bool(kept.all()):
        return calls.ambiguous("dropout_p=0.5 drops no weight")
    for value, factor in (("on weights, rescaled", 2.0), ("on weights, not rescaled", 1.0)):
        if torch.allclose(dropped[kept], factor * plain[kept], 1e-2):
            return calls.inferred(value + form, f"a kept weight is {factor:g} times its own")
    return calls.ambiguous("kept weights are neither 1 nor 2 times their own")


def _dtypes(calls: Calls) -> Answer:
    masks = [{} if calls.hide is None else calls.hide(ALLOWED)]
    if calls.answers["floating"].status == "inferred":
        masks.append({"attn_mask": torch.ones(3, 5)})
    taken, usual = [], calls.passed
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        calls.passed = dtype
        found = [(calls.output(calls.tensors(), **mask), calls.dtype) for mask in masks]
        if all(t is not None and own == dtype and not bool(t.isnan().any()) for t, own in found):
            taken.append(str(dtype).removeprefix("torch."))
    calls.passed = usual
    if not taken:
        return calls.ambiguous("with a mask, no dtype gives finite numbers of its own")
    return calls.inferred(tuple(taken), "those that a call takes and gives back")


def _internal_dtype(calls: Calls) -> Answer:
    wide = [tensor.double() for tensor in calls.tensors(4, 4)]
    found = calls.weights(wide)
    if found is None or calls.dtype != torch.float64:
        return calls.ambiguous(f"float64 is not taken, or not returned ({calls.raised})")
    if len(set(found.flatten().tolist())) < _VARIED:
        return calls.ambiguous("its weights are a few numbers, which fit every dtype")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if torch.equal(found.to(dtype).double(), found):
            value = str(dtype).removeprefix("torch.")
            return calls.inferred(value, f"all weights of a float64 call fit {value}")
    moved = [wide[0], wide[1] * (1 + 1e-11), wide[2]]
    if same(calls.weights(moved), found):
        return calls.ambiguous("narrower than float64 at some step before the weights")
    return calls.inferred(None, "1e-11 of a float64 key changes the weights")


_MOST_EXTRA = 9
"""Own keys beyond which two counts of keys do not tell how many there are."""


def _extra_keys(calls: Calls) -> Answer:
    """How many keys of its own it adds, where all scores are equal, as of a query of zeros."""
    moves = []
    for count in (1, 5):
        query, key, value = calls.tensors(3, count)
        before = calls.output([query * 0, key, value])
        after = calls.output([query * 0, key, value + 1])
        if before is None or after is None:
            return calls.ambiguous(f"raises {calls.raised}")
        moves.append(float((after - before).norm()))
    if not 0 < moves[0] <= moves[1] * (1 + 1e-2):
        return calls.ambiguous("what moves all values does not move the output alike")
    ratio = moves[1] / moves[0]  # 5/(5 + n) to 1/(1 + n)
    number = 5 * (ratio - 1) / (5 - ratio) if ratio < 5 else math.inf
    if number > _MOST_EXTRA or abs(number - round(number)) > 1e-2:
        return calls.ambiguous("values of 1 and of 5 keys weigh as with no whole number")
    return calls.inferred(round(number), "the weight of 1 key, and of 5, for a query of 0")


def _gradients(calls: Calls) -> Answer:
    tensors = [tensor.requires_grad_() for tensor in calls.tensors()]
    found, _ = output_and_more(calls.result(tensors))
    if not isinstance(found, Tensor):
        raised, plain = calls.raised, calls.output(calls.tensors())
        if plain is not None:
            return calls.inferred(False, f"raises {raised}")
        return calls.ambiguous(f"raises {raised}")
    return calls.inferred(found.requires_grad, "whether an output requires grad")


def _positions(calls: Calls) -> Answer:
    """Whether keys and queries may be reordered, or all shifted behind keys that are hidden."""
    query, key, value = calls.tensors(4, 4)
    plain = calls.output([query, key, value])
    keys = calls.output([query, key.roll(1, -2), value.roll(1, -2)])
    queries = calls.output([query.roll(1, -2), key, value])
    if plain is None or keys is None or queries is None:
        return calls.ambiguous(f"L=S=4 raises {calls.raised}")
    if alike(keys[..., -1, :], plain[..., -1, :]):  # which sees all keys even if always causal
        if calls.answers["causal"].value == "always":
            return calls.inferred("none", "keys reordered leave the last output alone")
        if alike(queries, plain.roll(1, -2)) and alike(keys, plain):
            return calls.inferred("none", "keys and queries may be reordered")
    if calls.hide is None:
        return calls.ambiguous("relative or absolute: they count, and no mask may hide some")
    query, key, value = calls.tensors()
    allowed = (torch.arange(5) >= 2).expand(3, 5)
    hidden = calls.output([query, key, value], **calls.hide(allowed))
    if alike(hidden, calls.output([query, key[..., 2:, :], value[..., 2:, :]])):
        return calls.inferred("relative", "2 hidden keys at the start may be left out")
    return calls.inferred("absolute", "2 hidden keys at the start change the output")


def _per_head(calls: Calls) -> Answer:
    """Whether heads that change places give other outputs."""
    tensors = calls.tensors()
    plain, turned = calls.output(tensors), calls.output([t.roll(1, 1) for t in tensors])
    if plain is None or turned is None:
        return calls.ambiguous(f"raises {calls.raised}")
    other = not alike(turned, plain.roll(1, 1))
    return calls.inferred(other, "heads that change places")


QUESTIONS: Mapping[str, tuple[str, Callable[[Calls], Answer]]] = {
    "layout": ("layout", _layout),
    "boolean": ("boolean mask", boolean_masks),
    "floating": ("floating mask", floating_masks),
    "key_padding": ("key padding mask", key_padding_masks),
    "causal": ("causal corner", causal_corner),
    "extra_keys": ("extra keys", _extra_keys),
    "empty_rows": ("empty rows", empty_rows),
    "hidden_slots": ("hidden slots", hidden_slots),
    "mask_value": ("mask value", mask_value),
    "scale": ("scale", scale_of_scores),
    "takes_scale": ("scale=", scale_argument),
    "groups": ("grouped heads", grouped_heads),
    "window": ("window", window_edges),
    "softcap": ("softcap", softcap_order),
    "lse_base": ("lse base", returned_lse),
    "lse_empty": ("lse of no keys", empty_lse),
    "dropout": ("dropout", _dropout),
    "weights": ("returned weights", returned_weights),
    "positions": ("positions", _positions),
    "per_head": ("per head", _per_head),
    "dtypes": ("dtypes", _dtypes),
    "internal_dtype": ("internal dtype", _internal_dtype),
    "gradients": ("gradients", _gradients),
}
"""What is asked, and by what: nothing without a layout, and later ones use the form of masks."""
