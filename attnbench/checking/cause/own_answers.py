"""Mistakes that a subject's own answers show, whatever its scores are."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.oracle.textbook import is_textbook, stages_of, textbook_output
from attnbench.subject.subject import Subject

_CASE = Case((3,), 4, 6, 8, 8, 8)
_PADDED = Case((2,), 5, 5, 8, 8, 8, mask="padding", seed=1)
_MARGIN = 1e-3
_ROUNDING = 1e-14
_HUGE = 150.0
_ALONE = "query_alone_equals_query_among_others"
"""Exempt where queries reach each other by design."""
_EVERY_KEY = "every_attendable_key_matters"
"""Exempt where some keys are never seen by design."""
_HEADS = "heads_are_independent"
"""Exempt where heads are mixed by design."""
MIXED = {
    "queries_read_together": _ALONE,
    "items_read_together": "item_alone_equals_item_in_batch",
    "heads_read_together": _HEADS,
    "keys_of_another_head": _HEADS,
    "key_not_read_by_all": _EVERY_KEY,
}
"""Mistakes that one invariant states, and that explain nothing where it holds."""


def own_mistake(subject: Subject) -> str | None:
    """The first mistake that the answers of a subject show; ``None`` without one."""
    apart = copy.copy(subject)  # an output that a later call overwrites is no other mistake
    object.__setattr__(apart, "output", lambda *call: subject.output(*call).clone())
    masks = (_misread_mask, _late_mask, _read_key, _lost_part, _miscounted_lengths)
    mechanism = (_wrong_axis, _mixed_rows, *masks, _short_sums, _unplaced_keys, _wrong_maximum)
    for look in mechanism if subject.kind == "mechanism" else (_foreign_scores,):
        with contextlib.suppress(Exception, SystemExit), torch.no_grad():  # other checks report
            if (found := look(apart)) is not None:
                return found
    return None


def _wrong_axis(subject: Subject) -> str | None:
    """The mistake of weights that sum to 1, but not over the keys."""
    weights = subject.weights(*subject.build(subject.legal(_CASE)))
    if weights is None:
        return None
    *others, keys = [
        size > 1 and bool(((weights.sum(axis) - 1).abs() < _MARGIN).all())
        for axis, size in enumerate(weights.shape)
    ]
    if keys or not any(others):
        return None
    axis = len(others) - 1 - others[::-1].index(True)
    return "softmax_over_the_queries" if others[-1] else f"softmax_over_dimension_{axis}"


def _mixed_rows(subject: Subject) -> str | None:
    """The mistake of rows that reach others, or not all that they should, without any mask."""
    module, inputs = subject.build(subject.legal(_CASE.replace(lead=(2, 3))))
    expected, again = (subject.output(module, inputs.map(torch.clone)) for _ in range(2))
    if not torch.equal(expected, again):
        return None

    def moved(rows: tuple[Any, ...], *names: str) -> Tensor:
        """The items and queries whose outputs change with some rows of the inputs."""
        other = inputs.map(torch.clone)
        for name in names:
            tensor = getattr(other, name)
            tensor[rows] = 1 - 3 * tensor[rows]
        change = (subject.output(module, other) - expected).abs().amax(-1)
        if not bool(change.isfinite().all()):
            raise ValueError("nothing is told by what is not finite")
        return change > _MARGIN * expected.abs().amax()

    tensors = ("query", "key", "value")
    if _ALONE not in subject.spec.exempt:
        if bool(moved((..., slice(-1, None), slice(None)), "query")[..., :-1].any()):
            return "queries_read_together"
        if bool(moved((-1,), *tensors)[:-1].any()):
            return "items_read_together"
    if _HEADS not in subject.spec.exempt and expected.dim() > 3:
        last, first = (moved((slice(None), head), *tensors) for head in (-1, 0))
        if bool(last[:, :-1].any() or first[:, 1:].any()):
            by_query, by_keys = (
                torch.stack(
                    [
                        moved((slice(None), head), *names).any((0, -1))
                        for head in range(expected.shape[1])
                    ]
                )
                for names in (tensors[:1], tensors[1:])
            )
            is_own = torch.equal(by_query, torch.eye(len(by_query), dtype=torch.bool))
            others = is_own and bool((by_keys.sum(0) == 1).all())  # each head reads one key head
            return "keys_of_another_head" if others else "heads_read_together"
    always = subject.conventions.causal == "always" or _EVERY_KEY in subject.spec.exempt
    unread = ~moved((..., slice(1), slice(None)), "key", "value")
    return None if always or not bool(unread.any()) or bool(unread.all()) else "key_not_read_by_all"


def _misread_mask(subject: Subject) -> str | None:
    """The mistake of a mask that changes nothing, or in which True hides a key."""
    if "boolean" not in subject.conventions.masks:
        return None
    module, inputs = subject.build(subject.legal(_CASE))
    queries, keys = (torch.arange(tensor.shape[-2]) for tensor in (inputs.query, inputs.key))
    mask = (queries[:, None] + keys) % 3 > 0
    one, other = inputs.replace(attn_mask=mask), inputs.map(torch.clone)
    for tensor in (other.key, other.value):
        tensor[..., 0, :] *= -2
    expected = subject.output(module, one)
    if _agrees(expected, subject.output(module, inputs)):
        return "mask_ignored"
    moved = subject.output(module, other.replace(attn_mask=mask)) - expected
    rows = moved.abs().amax((*range(moved.dim() - 2), -1)) > _MARGIN * expected.abs().amax()
    return "mask_inverted" if bool((rows != mask[:, 0]).all()) else None


def _late_mask(subject: Subject) -> str | None:
    """The mistake of weights that a mask only sets to 0, so that the others sum to less."""
    module, inputs = subject.build(subject.legal(_PADDED))
    calls = (inputs, inputs.replace(attn_mask=None, valid_lens=None))
    got, open_ = (subject.weights(module, call) for call in calls)
    if got is None or open_ is None or _agrees(got, open_):
        return None
    if not _agrees(open_.sum(-1), torch.ones_like(open_[..., 0])):  # it has no softmax
        return None
    return "mask_after_softmax" if _agrees(got, open_ * inputs.allowed) else None


def _read_key(subject: Subject) -> str | None:
    """The mistake of a hidden key that keeps weight, or changes that of the others."""
    if "boolean" not in subject.conventions.masks:
        return None
    module, inputs = subject.build(subject.legal(_CASE))
    shape = inputs.query.shape[-2], inputs.key.shape[-2]
    inputs = inputs.replace(attn_mask=torch.arange(shape[1]).expand(shape) > 0)
    expected = subject.output(module, inputs)

    def moves(name: str, factor: float) -> bool:
        tensor = getattr(inputs, name).clone()
        tensor[..., 0, :] *= factor
        return not _agrees(subject.output(module, inputs.replace(**{name: tensor})), expected)

    if moves("value", 8.0):
        return "hidden_key_pooled"
    return "hidden_key_read" if moves("key", 8.0) or moves("key", -8.0) else None


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
    if not all(_agrees(masked(keys), expected) for keys, expected in calls):
        return None
    if _agrees(output, masked(mask & padding)):
        return None
    mistakes = {
        "lengths_lost_beside_a_mask": mask,
        "mask_lost_beside_lengths": padding,
        "mask_counts_where_lengths_hide_too": mask | padding,
    }
    return next((name for name, keys in mistakes.items() if _agrees(output, masked(keys))), None)


def _short_sums(subject: Subject) -> str | None:
    """The mistake of rows that sum to a little less than 1 in any call, as of a softmax."""
    module, inputs = subject.build(subject.legal(_CASE).replace(dtype="float64"))
    weights = subject.weights(module, inputs)
    missing = torch.zeros(()) if weights is None else 1 - weights.sum(-1)
    missing = missing if inputs.query.dtype == torch.float64 else torch.zeros(())
    short = bool(((missing > _ROUNDING) & (missing < _MARGIN)).all())
    return "sum_with_epsilon" if short else None


def _wrong_maximum(subject: Subject) -> str | None:
    """The mistake of a largest score that is not subtracted, or is that of other rows too.

    One query has scores whose powers no float32 holds; the others stay as they were.
    """
    module, inputs = subject.build(subject.legal(_CASE.replace(lead=(2, 3))))
    if inputs.query.dtype != torch.float32 or not is_textbook(subject):
        return None
    scores = stages_of(inputs).scores
    query, first = inputs.query.clone(), scores[0, 0, 0]
    query[0, 0, 0] *= _HUGE / float(first[first.abs().argmax()])
    given = inputs.replace(query=query)
    output, expected = subject.output(module, given), textbook_output(given)
    wrong = ~((output - expected).abs() <= _MARGIN * expected.abs().amax()).all(-1)
    if not bool(wrong.any()) or not _agrees(
        subject.output(module, inputs), textbook_output(inputs)
    ):
        return None
    if not bool(wrong[0, 0, 0]):
        return "maximum_of_other_rows"
    alone = int(wrong.sum()) == 1 and not bool(output[0, 0, 0].isfinite().all())
    return "powers_overflow" if alone else None


def _unplaced_keys(subject: Subject) -> str | None:
    """The mistake of keys that count alike in any order, where the convention says otherwise, or
    whose scores are others at the same distance, though queries and keys are equal.
    """
    if subject.conventions.positions == "none":
        return None
    module, inputs = subject.build(subject.legal(_CASE))
    turned = inputs.replace(key=inputs.key.flip(-2), value=inputs.value.flip(-2))
    alike = _agrees(subject.output(module, turned), subject.output(module, inputs))
    if alike or subject.conventions.positions == "absolute":
        return "positions_ignored" if alike else None
    module, inputs = subject.build(subject.legal(_CASE.replace(q_len=6)))
    query, key = (t[..., :1, :].expand_as(t) for t in (inputs.query, inputs.key))
    weights = subject.weights(module, inputs.replace(query=query, key=key))
    steps = torch.zeros(2, 2) if weights is None else weights.log().diff(dim=-1)
    if not bool(steps.any()) or _agrees(steps[..., 1:, 1:], steps[..., :-1, :-1]):
        return None
    return "scores_not_by_distance" if bool(steps.isfinite().all()) else None


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
        if _agrees(of_tensors, expected) and not _agrees(of_lengths, expected):
            return "lengths_laid_of_another_item"
    output = subject.output(module, inputs.replace(valid_lens=inputs.valid_lens * 0 + 3))

    def is_of(count: int) -> bool:
        key, value = inputs.key[..., :count, :], inputs.value[..., :count, :]
        few = inputs.replace(key=key, value=value, valid_lens=None)
        return _agrees(output, subject.output(module, few))

    counts = {3: None, 4: "length_one_too_long", 2: "length_one_too_short"}
    return next((name for count, name in counts.items() if is_of(count)), None)


def _foreign_scores(subject: Subject) -> str | None:
    """The mistake of scores at another place, or that other keys or queries than theirs change."""
    module, inputs = subject.build(subject.legal(_CASE))
    query, key = inputs.query, inputs.key

    def scores(query: Tensor, key: Tensor) -> Tensor:
        found = subject.scores(module, inputs.replace(query=query, key=key))
        if found is None or not bool(found.isfinite().all()):
            raise ValueError("nothing is told by what is not finite")
        return found

    def moved(tensor: Tensor, slot: int) -> Tensor:
        other = tensor.clone()
        other[..., slot, :] = 1 - 3 * other[..., slot, :]
        return other

    expected = scores(query, key)
    queries, keys = torch.split(query, 1, -2), torch.split(key, 1, -2)
    rows = [[scores(q, k) for k in keys] for q in queries]
    alone = torch.cat([torch.cat(row, -1) for row in rows], -2)
    gaps = (expected.flatten(-2)[..., :, None] - alone.flatten(-2)[..., None, :]).abs().amin(-1)
    if not _agrees(expected, alone) and _agrees(expected.flatten(-2) + gaps, expected.flatten(-2)):
        return "scores_at_other_places"
    if not _agrees(scores(query, moved(key, -1))[..., :3], expected[..., :3]):
        return "scores_of_other_keys"
    if not _agrees(scores(moved(query, -1), key)[..., :3, :], expected[..., :3, :]):
        return "scores_of_other_queries"
    late = scores(moved(query, 0), key)[..., 1:, :]
    return None if _agrees(late, expected[..., 1:, :]) else "scores_of_earlier_queries"


def _agrees(output: Tensor, expected: Tensor) -> bool:
    if not bool(expected.any()):
        raise ValueError("nothing is told by zeros")
    margin = max(_MARGIN, 8 * torch.finfo(output.dtype).eps)  # of a subject without wide dtypes
    return bool(((output - expected).abs() <= margin * expected.abs().amax()).all())
