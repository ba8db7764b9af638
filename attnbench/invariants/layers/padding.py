"""Invariants on padding without a cache: padded tokens do not affect anything else."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from attnbench.errors import InvariantViolation
from attnbench.invariants.caches.checks import cache_invariant, has_cache
from attnbench.invariants.toolkit.applicability import any_of, has_no_gradients
from attnbench.invariants.toolkit.comparisons import holds, reject, violation_of
from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_invariant, takes_padding
from attnbench.invariants.toolkit.layer_faults import (
    holds_left_padding,
    leak,
    leaks_padding,
    mixes_items,
    sees_the_future,
)
from attnbench.invariants.toolkit.layer_rounding import gradient_floor
from attnbench.subject.layer import LayerSubject

_SIDES = ("padding", "left_padding")


@layer_invariant(masks=("padding",), applies=takes_padding)
def padded_tokens_are_inert(layer: LayerCase) -> None:
    """The outputs of real tokens do not depend on the finite numbers that padded tokens hold."""
    mask = layer.padded()
    violation = leak(layer, mask)
    if violation is not None and not mixes_items(layer.subject):
        raise violation


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
            f"a gradient, a sum or a norm over the batch would be lost",
            quantity="output",
            place=place,
            got=output[tuple(place)].item(),
            expected="finite",
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
            violation = layer.differs(
                got,
                expected,
                layer.real(own),
                functools.partial(layer.limits, own),
                what=f"item {item}, {length} real of {mask.shape[1]} slots, {how}: output",
                other="the item alone without padding",
            )
            if violation is not None and not _told_elsewhere(layer, "padding"):
                raise violation


@layer_invariant(masks=("left_padding",), applies=takes_padding, law=True)
def left_padding_is_inert(layer: LayerCase) -> None:
    """An item padded at the left, in a batch or alone, gives what it gives without padding,
    whatever finite numbers the padded tokens hold.
    """
    mask = layer.padded()
    violation = leak(layer, mask)
    if violation is None or _told_elsewhere(layer, "padding"):
        violation = violation_of(padded_item_equals_item_alone.check, layer.subject, layer.case)
    if violation is not None:
        raise violation


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
