"""Invariants on padding without a cache: padded tokens do not affect anything else."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.caches.checks import cache_invariant, has_cache
from attnbench.invariants.toolkit.comparisons import differentiate, reject
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import (
    Look,
    has_gradients,
    layer_cases,
    takes_padding,
)
from attnbench.invariants.toolkit.layer_faults import (
    holds_left_padding,
    leak,
    leaks_padding,
    mixes_items,
    sees_the_future,
)
from attnbench.invariants.toolkit.layer_rounding import gradient_floor, rounding_of
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

_SIDES = ("padding", "left_padding")


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=("padding",)),
    applies=takes_padding,
)
def padded_tokens_are_inert(subject: Subject, case: Case) -> None:
    """The outputs of real tokens do not depend on the finite numbers that padded tokens hold."""
    look = Look(subject, case)
    mask = look.padded()
    violation = leak(look, mask)
    if violation is None or mixes_items(look.subject):
        return
    if (
        bool((~mask).any(1).all())
        # a layer that zeroes what the mask hides shows nothing at all with the mask inverted
        and bool(look.run(look.hidden, ~mask)[mask].any())
        and leak(look, mask, ~mask) is None
    ):
        raise violation.reworded(
            f"{violation}\n  With the mask inverted nothing of this happens: the layer takes True "
            "for padding, but padding_mask is True for a real token.",
            cause="mask_inverted",
        )
    raise violation


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=_SIDES),
    applies=takes_padding,
)
def padded_outputs_are_finite(subject: Subject, case: Case) -> None:
    """Outputs at padded slots are finite, also of an item without a real token."""
    look = Look(subject, case)
    mask = look.padded()
    output = look.run(look.hidden, mask)
    bad = ~output.isfinite()
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        kind = "a padded slot" if not bool(mask[tuple(place[:2])]) else "a real token"
        item = "" if bool(mask[place[0]].any()) else ", of an item without a real token"
        raise InvariantViolation(
            f"output{place} = {output[tuple(place)].item()} at {kind}{item}, but should be finite: "
            "a gradient, a sum or a norm over the batch would be lost"
        )


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=_SIDES, dtypes=("float32", "float64")),
    applies=lambda subject: takes_padding(subject) or has_gradients(subject),
)
def padded_tokens_take_no_gradient(subject: Subject, case: Case) -> None:
    """Outputs of real tokens have finite gradients, and none with respect to padded tokens."""
    look = Look(subject, case)
    mask = look.padded()
    hidden = look.hidden.detach().clone().requires_grad_()
    output, _ = look.subject.call(look.module, hidden, mask)
    if not output.requires_grad:
        reject("the output has no graph")
    weight = look.other(output.detach())
    weight = torch.where(mask.unsqueeze(-1), weight, torch.zeros_like(weight))
    parameters = [p for p in look.module.parameters() if p.requires_grad]
    gradient, *others = differentiate(output, [hidden, *parameters], weight)
    names = [n for n, p in look.module.named_parameters() if p.requires_grad]
    for name, one in zip(("hidden", *names), (gradient, *others), strict=True):
        if one is not None and not bool(one.isfinite().all()):
            raise InvariantViolation(
                f"the gradient by {name} of the real tokens' outputs is not finite, but should be, "
                "whatever is padded"
            )
    if gradient is None:
        return
    leaked = torch.where(mask.unsqueeze(-1), torch.zeros_like(gradient), gradient)
    allowed = gradient_floor(look.subject, gradient)
    if float(leaked.abs().amax()) > allowed and not _told_elsewhere(look, case.mask):
        place = [int(i) for i in (leaked.abs() > allowed).nonzero()[0]]
        raise InvariantViolation(
            f"the gradient of the real tokens' outputs by the padded hidden{place} = "
            f"{leaked[tuple(place)].item():.6g}, but should be 0 (± {allowed:.2g})"
        )


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=("padding",)),
    applies=takes_padding,
)
def padded_item_equals_item_alone(subject: Subject, case: Case) -> None:
    """An item padded at the right, in a batch or alone, gives what it gives without padding."""
    look = Look(subject, case)
    mask = look.padded()
    for grad in (False, True) if subject.conventions.gradients else (False,):
        with torch.set_grad_enabled(grad):
            output, _ = look.subject.call(look.module, look.hidden, mask)
        for item in range(case.lead[0]):
            length = int(mask[item].sum())
            if not length:
                continue  # compared with nothing
            slots = mask[item].nonzero().flatten()
            own = look.hidden[item : item + 1, slots]
            expected, got = look.run(own), output[item : item + 1, slots].detach()

            def allowed(own: Tensor = own) -> Tensor:
                return rounding_of(look.subject, look.module, own)

            found = look.differs(got, expected, look.real(own), allowed)
            if found is None or _told_elsewhere(look, "padding"):
                continue
            how = "with grad" if grad else "under no_grad"
            what = f"item {item}, {length} real of {case.q_len} slots, {how}: output"
            look.accuse(found, got, expected, what, "the item alone without padding")


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=("left_padding",)),
    applies=takes_padding,
    law=True,
)
def left_padding_is_inert(subject: Subject, case: Case) -> None:
    """An item padded at the left, in a batch or alone, gives what it gives without padding,
    whatever finite numbers the padded tokens hold.
    """
    look = Look(subject, case)
    violation = leak(look, look.padded())
    if violation is not None and not _told_elsewhere(look, "padding"):
        raise violation
    padded_item_equals_item_alone.check(subject, case)


def _told_elsewhere(look: Look, mask: str) -> bool:
    """Whether another invariant reports the error."""
    subject = look.subject
    return leaks_padding(subject, mask) or mixes_items(subject) or sees_the_future(subject, mask)


def _decodes_padded(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
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
attnbench_invariants = hook_of(__name__)
