"""Mistakes that a subject's own answers show, whatever its scores are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.checking.cause.beside_reference import beside_reference
from attnbench.checking.cause.filled_key import is_filled_alike
from attnbench.checking.cause.gradient_mistakes import gradient_mistake
from attnbench.checking.cause.score_answers import (
    CASE,
    MARGIN,
    agrees,
    counted_keys,
    foreign_scores,
    lost_squares,
    misplaced_scores,
    rounded_numbers,
    short_sums,
    unplaced_keys,
    wrong_axis,
    wrong_maximum,
)
from attnbench.checking.cause.side_answers import side_mistake
from attnbench.oracle.textbook import is_textbook, textbook_output
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_PADDED = Case((2,), 5, 5, 8, 8, 8, mask="padding", seed=1)
_FAR = 2048.0
"""Scores that are so many times as large reach beyond a number that is too near to zero."""

_ALONE = "query_alone_equals_query_among_others"
"""Exempt where queries reach each other by design."""
_ITEM = "item_alone_equals_item_in_batch"
"""Exempt where items reach each other by design."""
_EVERY_KEY = "every_attendable_key_matters"
"""Exempt where some keys are never seen by design."""
_HEADS = "heads_are_independent"
"""Exempt where heads are mixed by design."""
_DECODE, _SCALAR = "decode_equals_prefill", "agrees_with_scalar_reference"
_FRONT, _BEHIND = (f"{end}_padding_equals_deleting" for end in ("leading", "trailing"))
STATED_BY = {
    "queries_read_together": (_ALONE,),
    "items_read_together": (_ITEM,),
    "heads_read_together": (_HEADS,),
    "keys_of_another_head": (_HEADS,),
    "heads_at_other_places": (_HEADS,),
    "key_not_read_by_all": (_EVERY_KEY,),
    "place_of_item": ("leading_sizes_fold",),
    "scores_by_later_count": (_DECODE, _BEHIND, _SCALAR),
    "scores_by_count": (_FRONT, _DECODE, _SCALAR),
    "queries_counted_from_the_first_key": (_FRONT, _DECODE, _SCALAR),
    "scores_not_by_distance": (_FRONT, _SCALAR),
    "scores_of_later_keys_shifted": (_FRONT, _DECODE, _SCALAR),
}
"""The invariants that state a mistake: it explains no failure of any other."""


def own_mistake(subject: Subject) -> str | None:
    """The first mistake that the answers of a subject show; ``None`` without one."""
    apart = copy.copy(subject)  # an output that a later call overwrites is no other mistake
    object.__setattr__(apart, "output", lambda *call: subject.output(*call).clone())
    masks = (_misread_mask, _late_mask, _miscounted_lengths, _read_key, _lost_part)
    rows = (wrong_axis, _mixed_rows, *masks, short_sums, unplaced_keys, wrong_maximum, counted_keys)
    others: tuple[Callable[[Subject], str | None], ...] = (
        _mixed_scores,
        foreign_scores,
        lost_squares,
        beside_reference,  # or what follows from another formula is named
        misplaced_scores,
        rounded_numbers,
    )
    mechanism = (*rows, side_mistake, lost_squares, gradient_mistake)
    if not _is_steady(subject):
        return None
    for look in (*mechanism, beside_reference) if subject.kind == "mechanism" else others:
        with contextlib.suppress(Exception, SystemExit), torch.no_grad():  # other checks report
            if (found := look(apart)) is not None:
                return found
    return None


def _is_steady(subject: Subject) -> bool:
    """Whether the same call gives the same output twice, or the same scores."""
    answer = subject.scores if subject.kind == "scoring" else subject.output
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():
        module, inputs = subject.build(subject.legal(CASE))
        one, two = (answer(module, inputs) for _ in range(2))
        if one is not None and two is not None:
            return torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)
    return True


def _mixed_scores(subject: Subject) -> str | None:
    """The mistake of scores that other heads or items reach, or the place of their item."""
    module, inputs = subject.build(subject.legal(CASE.replace(lead=(2, 3))))

    def scores(given: Inputs) -> Tensor:
        found = subject.scores(module, given)
        if found is None:
            raise ValueError("it has no scores")
        return found

    def stay(rows: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
        moved = inputs.map(torch.clone)
        for tensor in (moved.query, moved.key):
            tensor[rows] = 1 - 3 * tensor[rows]
        return agrees(scores(moved)[others], scores(inputs)[others])

    if not stay((-1,), (slice(-1),)) and _ITEM not in subject.spec.exempt:
        return "items_read_together"
    every = slice(None)
    if not stay((every, -1), (every, slice(-1))) and _HEADS not in subject.spec.exempt:
        return "heads_read_together"
    if subject.conventions.per_head:
        return None
    same = scores(inputs.map(lambda tensor: tensor[:1, :1].expand_as(tensor).clone()))
    return None if agrees(same[1:, :1], same[:1, :1].expand_as(same[1:, :1])) else "place_of_item"


def _mixed_rows(subject: Subject) -> str | None:
    """The mistake of rows that reach others, or not all that they should, without any mask."""
    module, inputs = subject.build(subject.legal(CASE.replace(lead=(2, 3))))
    expected, again = (subject.output(module, inputs.map(torch.clone)) for _ in range(2))
    if not torch.equal(expected, again):
        return None

    def moved(rows: tuple[Any, ...], *names: str, least: float = MARGIN) -> Tensor:
        """The items and queries whose outputs change with some rows of the inputs."""
        other = inputs.map(torch.clone)
        for name in names:
            tensor = getattr(other, name)
            tensor[rows] = 1 - 3 * tensor[rows]
        change = (subject.output(module, other) - expected).abs().amax(-1)
        if not bool(change.isfinite().all()):
            raise ValueError("nothing is told by what is not finite")
        return change > least * expected.abs().amax()

    tensors = ("query", "key", "value")
    exempt = subject.spec.exempt
    last_query = (..., slice(-1, None), slice(None))
    if _ALONE not in exempt and bool(moved(last_query, "query")[..., :-1].any()):
        return "queries_read_together"
    if _ITEM not in exempt and bool(moved((-1,), *tensors)[:-1].any()):
        return "items_read_together"
    if _HEADS not in subject.spec.exempt and expected.dim() > 3:
        heads = expected.shape[1]
        last, first = (moved((slice(None), head), *tensors) for head in (-1, 0))
        if bool(last[:, :-1].any() or first[:, 1:].any()):
            reads = [
                torch.stack(
                    [moved((slice(None), head), name).any((0, -1)) for head in range(heads)]
                )
                for name in tensors
            ]
            one_each = all(bool((by.sum(0) == 1).all()) for by in reads)  # of each of the three
            is_own = torch.equal(reads[0], torch.eye(heads, dtype=torch.bool))
            if one_each and not is_own and bool((reads[0].sum(1) == 1).all()):
                return "heads_at_other_places"
            return "keys_of_another_head" if one_each and is_own else "heads_read_together"
    if not bool(moved((...,), "value", least=0.0).any()) and bool(moved((...,), "key").any()):
        return "values_unread"
    always = subject.conventions.causal == "always" or _EVERY_KEY in subject.spec.exempt
    unread = ~moved((..., slice(1), slice(None)), "key", "value", least=0.0)
    return None if always or not bool(unread.any()) or bool(unread.all()) else "key_not_read_by_all"


def _misread_mask(subject: Subject) -> str | None:
    """The mistake of a mask that changes nothing, or in which True hides a key."""
    if "boolean" not in subject.conventions.masks:
        return None
    module, inputs = subject.build(subject.legal(CASE))
    queries, keys = (torch.arange(tensor.shape[-2]) for tensor in (inputs.query, inputs.key))
    mask = (queries[:, None] + keys) % 3 > 0
    one, other = inputs.replace(attn_mask=mask), inputs.map(torch.clone)
    for tensor in (other.key, other.value):
        tensor[..., 0, :] *= -2
    expected = subject.output(module, one)
    if agrees(expected, subject.output(module, inputs)):
        return "mask_ignored"
    moved = subject.output(module, other.replace(attn_mask=mask)) - expected
    rows = moved.abs().amax((*range(moved.dim() - 2), -1)) > MARGIN * expected.abs().amax()
    return "mask_inverted" if bool((rows != mask[:, 0]).all()) else None


def _late_mask(subject: Subject) -> str | None:
    """The mistake of weights that a mask only sets to 0, so that the others sum to less."""
    module, inputs = subject.build(subject.legal(_PADDED))
    calls = (inputs, inputs.replace(attn_mask=None, valid_lens=None))
    got, open_ = (subject.weights(module, call) for call in calls)
    if got is None or open_ is None or agrees(got, open_):
        return None
    if not agrees(open_.sum(-1), torch.ones_like(open_[..., 0])):  # it has no softmax
        return None
    return "mask_after_softmax" if agrees(got, open_ * inputs.allowed) else None


def _read_key(subject: Subject) -> str | None:
    """The mistake of a hidden key that keeps weight, or changes that of the others."""
    by_mask = "boolean" in subject.conventions.masks
    module, inputs = subject.build(subject.legal(CASE if by_mask else _PADDED))
    q_len, last = inputs.query.shape[-2], inputs.key.shape[-2] - 1
    if by_mask:
        inputs = inputs.replace(attn_mask=torch.arange(last + 1).expand(q_len, -1) < last)
    elif inputs.valid_lens is not None:
        inputs = inputs.replace(valid_lens=inputs.valid_lens * 0 + last)
    else:
        return None

    def moves(given: Inputs, name: str, factor: float) -> bool:
        tensor = getattr(given, name).clone()
        tensor[..., -1, :] *= factor
        one, two = (
            subject.output(module, call) for call in (given, given.replace(**{name: tensor}))
        )
        return bool(one.isfinite().all() and two.isfinite().all()) and not agrees(two, one)

    if moves(inputs, "value", 8.0):
        plain = inputs.replace(attn_mask=None, valid_lens=None)  # if wrong, no mask is to blame
        wrong = is_textbook(subject) and not agrees(
            subject.output(module, plain), textbook_output(plain).to(plain.query)
        )
        is_filled = moves(plain, "key", 8.0) and not moves(inputs, "key", 8.0)
        is_filled = is_filled and not wrong and is_filled_alike(subject, module, inputs)
        return None if wrong else "hidden_key_filled" if is_filled else "hidden_key_pooled"
    if moves(inputs, "key", 8.0) or moves(inputs, "key", -8.0):
        return "hidden_key_read"
    far = (inputs.replace(query=inputs.query * factor) for factor in (_FAR, -_FAR))
    return "hidden_key_pooled_far" if any(moves(one, "value", 8.0) for one in far) else None


def _lost_part(subject: Subject) -> str | None:
    """The mistake of lengths and a mask that are right alone, and wrong in one call."""
    if "valid_lens" not in subject.accepts:
        return None
    module, inputs = subject.build(subject.legal(_PADDED))
    padding = inputs.allowed.expand(*inputs.query.shape[:-1], inputs.key.shape[-2])
    mask = torch.rand(padding.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[..., 0] = True

    def masked(keys: Tensor | None) -> Tensor:
        return subject.output(module, inputs.replace(attn_mask=keys, valid_lens=None))

    output = subject.output(module, inputs.replace(attn_mask=mask))
    calls = ((mask | ~mask, masked(None)), (padding, subject.output(module, inputs)))
    if not all(agrees(masked(keys), expected) for keys, expected in calls):
        return None
    if agrees(output, masked(mask & padding)):
        return None
    mistakes = {
        "lengths_lost_beside_a_mask": mask,
        "mask_lost_beside_lengths": padding,
        "mask_counts_where_lengths_hide_too": mask | padding,
    }
    return next((name for name, keys in mistakes.items() if agrees(output, masked(keys))), None)


def _miscounted_lengths(subject: Subject) -> str | None:
    """The mistake of lengths that reach another item, which nothing else of their item does, or
    that leave another number of keys, whose output is that of so many.
    """
    module, inputs = subject.build(subject.legal(_PADDED))
    if inputs.valid_lens is None:
        return None
    for own, at in ((0, slice(1, 2)), (1, slice(1))):
        other, lens = inputs.map(torch.clone), inputs.valid_lens.clone()
        other.query[at] *= -2  # not its key as well, or their products are the same
        other.value[at] *= -1
        lens[at] = 1 + lens[at] % inputs.key.shape[-2]
        calls = (inputs, other, inputs.replace(valid_lens=lens))
        expected, of_tensors, of_lengths = (subject.output(module, call)[own] for call in calls)
        if agrees(of_tensors, expected) and not agrees(of_lengths, expected):
            return "lengths_laid_of_another_item"
    output = subject.output(module, inputs.replace(valid_lens=inputs.valid_lens * 0 + 3))

    def is_of(count: int) -> bool:
        key, value = inputs.key[..., :count, :], inputs.value[..., :count, :]
        few = inputs.replace(key=key, value=value, valid_lens=None)
        return agrees(output, subject.output(module, few))

    counts = {3: None, 4: "length_one_too_long", 2: "length_one_too_short"}
    counts[inputs.key.shape[-2]] = "lengths_ignored"
    return next((name for count, name in counts.items() if is_of(count)), None)
