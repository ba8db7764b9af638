"""Invariants on padding without a cache: padded tokens do not affect anything else."""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor

from attnbench.errors import InvariantViolation
from attnbench.invariants.caches.checks import cache_invariant, has_cache
from attnbench.invariants.caches.repaired_calls import repaired_padding
from attnbench.invariants.toolkit.applicability import any_of, has_no_gradients
from attnbench.invariants.toolkit.comparisons import holds, reject, violation_of
from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_invariant, takes_padding
from attnbench.invariants.toolkit.layer_faults import (
    holds_left_padding,
    holds_right_padding,
    leak,
    leaks_padding,
    masks_no_key,
    mixes_items,
    mixes_rows,
    sees_the_future,
)
from attnbench.invariants.toolkit.layer_rounding import gradient_floor
from attnbench.invariants.toolkit.mixing import first_mixing
from attnbench.subject.layer import LayerSubject
from attnbench.subject.tracing import Operation, traced

_SIDES = ("padding", "left_padding")
_COUNTED = "padded_tokens_counted"


@layer_invariant(masks=("padding",), applies=takes_padding)
def padded_tokens_are_inert(layer: LayerCase) -> None:
    """The outputs of real tokens do not depend on the finite numbers that padded tokens hold."""
    mask = layer.padded()
    violation = leak(layer, mask)
    if violation is None or mixes_items(layer.subject):
        return
    remark, cause = _way(layer, mask)
    raise violation.reworded(f"{violation}{remark}", cause=cause)


def _way(layer: LayerCase, mask: Tensor) -> tuple[str, str | None]:
    """A line on the way by which padding reaches real tokens, and the cause; empty if unknown."""
    if (
        bool((~mask).any(1).all())
        # a layer that zeroes what the mask hides shows nothing at all with the mask inverted
        and bool(layer.run(layer.hidden, ~mask)[mask].any())
        and leak(layer, mask, ~mask) is None
        and leak(layer, ~mask, mask) is None  # and so are real tokens hidden
    ):
        return (
            "\n  With the mask inverted nothing of this happens: the layer takes True for padding, "
            "but padding_mask is True for a real token."
        ), "mask_inverted"
    ahead = sees_the_future(layer.subject, "none")  # whatever the mask hides
    if not ahead and (cause := masks_no_key(layer.subject)) is not None:
        remark = "\n  The mask changes no output of a real token: it hides no key from them."
        return remark, cause
    if len(mask) > 1 and not any(_leaks_alone(layer, mask, item) for item in range(len(mask))):
        remark = "\n  In a batch of its own nothing of this happens to any item"
        if all(leak(layer, own.expand_as(mask)) is None for own in mask):
            return f"{remark}, nor with one mask for all: it gets the mask of another one.", (
                "mask_misplaced"
            )
        return f"{remark}.", None
    if mixes_rows(layer.subject):
        return (
            "\n  With one real token nothing of this happens: padded keys are hidden, and padded "
            "queries reach other rows."
        ), "layer_tokens_mixed"
    return first_mixing(layer.subject, "padded"), None


def _leaks_alone(layer: LayerCase, mask: Tensor, item: int) -> bool:
    """Whether padding reaches the real tokens of an item in a batch of its own."""
    alone, own = copy.copy(layer), slice(item, item + 1)
    alone.hidden, alone.mask = layer.hidden[own], mask[own]
    vars(alone).pop("rounding", None)  # remembered of the batch
    return leak(alone, mask[own]) is not None


@layer_invariant(masks=_SIDES, applies=takes_padding)
def padded_outputs_are_finite(layer: LayerCase) -> None:
    """Outputs at padded slots are finite, also of an item without a real token."""
    mask = _seen(layer)
    output = layer.run(layer.hidden, mask)
    finite = output.isfinite()
    if not bool(finite.all()):
        place = finite.logical_not().nonzero()[0].tolist()
        kind = "a padded slot" if not bool(mask[tuple(place[:2])]) else "a real token"
        item = "" if bool(mask[place[0]].any()) else ", of an item without a real token"
        raise InvariantViolation(
            f"output{place} = {output[tuple(place)].item()} at {kind}{item}, but should be finite: "
            f"a gradient, a sum or a norm over the batch would be lost{_first_nan(layer, mask)}",
            quantity="output",
            place=place,
            got=output[tuple(place)].item(),
            expected="finite",
            cause="layer_padding" if kind == "a real token" else None,
            compared={"condition": finite, "values": output},
        )


def _seen(layer: LayerCase) -> Tensor:
    """The mask; rejects padding at the left where rows that see no token may be NaN."""
    if layer.case.mask == "left_padding" and layer.subject.conventions.empty_rows == "nan":
        reject("rows that see no token may be NaN (convention empty_rows)")
    return layer.padded()


@layer_invariant(
    masks=_SIDES,
    dtypes=("float32", "float64"),
    applies=any_of(takes_padding, has_no_gradients),
)
def padded_tokens_take_no_gradient(layer: LayerCase) -> None:
    """Outputs of real tokens have finite gradients, and none with respect to padded tokens."""
    mask = _seen(layer)
    gradients = layer.gradients(mask.unsqueeze(-1))
    for name, one in gradients.items():
        if one is not None and not bool(one.isfinite().all()):
            raise InvariantViolation(
                f"the gradient by {name} of the real tokens' outputs is not finite, but should be, "
                "whatever is padded"
            )
    gradient = gradients["hidden"]
    if gradient is None:
        return
    leaked = gradient.masked_fill(mask.unsqueeze(-1), 0.0)
    allowed = gradient_floor(layer.subject, gradient)
    fits = leaked.abs() <= allowed
    if not bool(fits.all()) and not _told_elsewhere(layer, layer.case.mask):
        what = "the gradient of the real tokens' outputs by the padded hidden"
        holds(fits, what, leaked, f"0 (± {allowed:.2g})")


@layer_invariant(masks=("padding",), applies=takes_padding)
def padded_item_equals_item_alone(layer: LayerCase) -> None:
    """An item padded at the right, in a batch or alone, gives what it gives without padding."""
    mask = layer.padded()
    for grad in (False, True) if layer.subject.conventions.gradients else (False,):
        with torch.set_grad_enabled(grad):
            output, _ = layer.call(layer.hidden, mask)
        for item in range(len(layer.hidden)):
            length = int(mask[item].sum())
            if not length:
                continue  # compared with nothing
            slots = mask[item].nonzero().flatten()
            own = layer.hidden[item : item + 1, slots]
            expected, got = layer.run(own), output[item : item + 1, slots].detach()

            how = "with grad" if grad else "under no_grad"
            compared = functools.partial(
                layer.differs,
                got,
                real=layer.real(own),
                allowed=functools.partial(layer.limits, own),
                what=f"item {item}, {length} real of {mask.shape[1]} slots, {how}: output",
                other="the item alone without padding",
            )
            violation = compared(expected)
            if violation is not None and not _told_elsewhere(layer, "padding"):
                told = f"{violation}{first_mixing(layer.subject, 'padding')}"
                whole, _ = layer.call(own, torch.ones_like(mask[item : item + 1, slots]))
                is_counted = compared(whole.detach()) is not None  # a mask alone may count, too
                raise violation.reworded(told, cause=_COUNTED if is_counted else None)


@layer_invariant(masks=("left_padding",), applies=takes_padding, law=True)
def left_padding_is_inert(layer: LayerCase) -> None:
    """An item padded at the left, in a batch or alone, gives what it gives without padding,
    whatever finite numbers the padded tokens hold.
    """
    mask = layer.padded()
    violation = leak(layer, mask)
    is_read = violation is not None
    if violation is None or _told_elsewhere(layer, "padding"):
        violation = violation_of(padded_item_equals_item_alone.check, layer.subject, layer.case)
    if violation is None:
        return
    is_lost = violation.got != violation.got and violation.expected == violation.expected
    told = _first_nan(layer, mask) if is_lost else repaired_padding(layer.subject)
    cause = "layer_left_nan" if is_lost else "layer_left_padding"
    if not is_lost and not is_read and violation.cause == _COUNTED:
        cause = "left_padding_counted"
        told = told or "\n  what padded tokens hold does not matter, but that they are there does"
    if not is_lost and ".py:" not in f"{violation}{told}":
        told += first_mixing(layer.subject, "left_padded" if is_read else "left")
    is_of_this_side = holds_right_padding(layer.subject)
    raise violation.reworded(f"{violation}{told}", cause=cause if is_of_this_side else None)


def _first_nan(layer: LayerCase, mask: Tensor) -> str:
    """The operation of a call with padding that is the first to give NaN."""
    try:
        with torch.no_grad(), traced(layer.module) as trace:
            layer.subject.call(layer.module, layer.hidden, mask)
    except (Exception, SystemExit):  # a layer may refuse to be looked at
        return ""
    before = None
    for one in trace.operations:
        if bool((one.output == torch.inf).any()):
            return ""
        if bool(one.output.isnan().any()):
            is_hidden = before is not None and _is_of_hidden_rows(one, before)
            why = ", of a row in which all is -inf" if is_hidden else ""
            return f"\n  first NaN in {one.line}{why}"
        before = one
    return ""


def _is_of_hidden_rows(lost: Operation, before: Operation) -> bool:
    """Whether a softmax gives NaN in just the rows that are -inf throughout in what it is of."""
    scores, weights = before.output, lost.output
    if "softmax" not in lost.name or scores.numel() != weights.numel() or not weights.dim():
        return False
    scores = scores.reshape(-1, weights.shape[-1])
    return torch.equal((scores == -torch.inf).all(-1), weights.reshape_as(scores).isnan().any(-1))


def _told_elsewhere(layer: LayerCase, mask: str) -> bool:
    """Whether another invariant reports the error."""
    subject = layer.subject
    return leaks_padding(subject, mask) or mixes_items(subject) or sees_the_future(subject, mask)


def _decodes_padded(subject: LayerSubject) -> str | None:
    reason = has_cache(subject)
    if reason is not None:
        return reason
    untested = "padding with a cache was not tested"
    if "padding_mask" not in subject.accepts:
        return f"{untested}: it does not accept padding_mask"
    if not holds_left_padding(subject):
        return (
            f"{untested}: law left_padding_is_inert not declared, and in one call padding at the "
            "left changes outputs"
        )
    return None


padded_rows_decode_as_alone = cache_invariant(
    "alone",
    "A row that is padded at the left decodes, with a cache, as it does alone.",
    _decodes_padded,
)
right_padding_is_inert = cache_invariant(
    "ragged",
    "Padding at the right of a prompt, or of what is appended to some rows only, changes no "
    "later output: each row decodes, with a cache, as it does alone.",
    lambda subject: takes_padding(subject) or has_cache(subject),
    law=True,
)
