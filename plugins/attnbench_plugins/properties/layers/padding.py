"""Invariants on padding without a cache: padded tokens do not affect anything else."""

from __future__ import annotations

import functools

import torch

from attnbench.testing import LayerCase, LayerSubject, holds, violation_of
from attnbench_plugins.properties import layer_invariant
from attnbench_plugins.properties.caches.checks import cache_invariant, has_cache
from attnbench_plugins.properties.layer_faults import (
    holds_left_padding,
    leak,
    leaks_padding,
    mixes_items,
    no_gradient,
    sees_the_future,
    takes_padding,
)


@layer_invariant(masks=("padding",), applies=takes_padding)
def padded_tokens_are_inert(layer: LayerCase) -> None:
    """The outputs of real tokens do not depend on the finite numbers that padded tokens hold, nor
    have a gradient by them, and outputs at padded slots are finite.
    """
    mask = layer.padded()
    output = layer.run(layer.hidden, mask)
    holds(output.isfinite(), "output", output, "finite, at padded slots too")
    if mixes_items(layer.subject):
        return  # items_are_independent tells
    violation = leak(layer, mask)
    if violation is not None:
        raise violation
    real = mask.unsqueeze(-1)
    no_gradient(layer, real, ~real, "the real tokens' outputs by the padded hidden")


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
