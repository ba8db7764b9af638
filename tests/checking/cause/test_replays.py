"""Mistakes that are made at some sizes or options alone, found at their counterexamples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash, sdpa


def whole_blocks(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Blocks of 32 that divide both lengths need no mask to end them, and get none at all."""
    whole = query.shape[-2] % 32 == 0 and key.shape[-2] % 32 == 0
    return scaled_dot_product_attention(query, key, value, None if whole else attn_mask)


def inverted(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """With more than 8 keys the mask is read with the opposite meaning, whatever it is made of."""
    if attn_mask is not None and attn_mask.dtype == torch.bool and key.shape[-2] > 8:
        attn_mask = ~attn_mask
    return scaled_dot_product_attention(query, key, value, attn_mask)


def moved_back(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """The last block of 16 keys is moved back to be whole; some keys are in two blocks."""
    length, rest = key.shape[-2], key.shape[-2] % 16
    if length < 16 or not rest or attn_mask is not None:
        return scaled_dot_product_attention(query, key, value, attn_mask)
    slots = [*range(length - rest), *range(length - 16, length)]
    return scaled_dot_product_attention(query, key[..., slots, :], value[..., slots, :])


def averaged(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Eight keys and more are attended in halves, whose outputs are averaged."""
    if key.shape[-2] < 8:
        return scaled_dot_product_attention(query, key, value, attn_mask)
    parts = (t.tensor_split(2, -2) for t in (key, value))
    masks: Any = (None, None)
    if attn_mask is not None:
        masks = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2]).tensor_split(2, -1)
    halves = zip(*parts, masks, strict=True)
    return sum(scaled_dot_product_attention(query, *half) for half in halves) / torch.tensor(2.0)


def softmax_in_half(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """The weights of all but float64 go through float16."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    narrow = None if scores.dtype == torch.float64 else torch.float16
    return scores.softmax(-1, dtype=narrow).nan_to_num(0.0).to(query.dtype) @ value


def by_chunks(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Each chunk of 4 queries gets the first rows of the mask."""
    parts = []
    for rows in query.split(4, -2):
        mask = attn_mask
        if mask is not None:
            mask = mask.expand(*mask.shape[:-2], query.shape[-2], -1)[..., : rows.shape[-2], :]
        parts.append(scaled_dot_product_attention(rows, key, value, mask))
    return torch.cat(parts, -2)


def windowed(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int], right: bool
) -> Tensor:
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    before, after = window_size
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - k.shape[1]
    distance += q.shape[1]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if before >= 0:
        seen &= distance >= -before
    if after >= 0:
        seen &= distance <= after
    if causal and (right or before < 0):
        seen &= distance <= 0
    return scaled_dot_product_attention(query, key, value, seen).transpose(1, 2)


def first_rows(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Only so many rows are computed as the window is wide."""
    output = windowed(q, k, v, causal, window_size, True)
    rows = torch.arange(q.shape[1])[:, None, None]
    return output if window_size[0] < 0 else output * (rows <= window_size[0])


def uncausal(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Beside a window, causality is lost."""
    return windowed(q, k, v, causal, window_size, False)


def open_where_wide(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: tuple[int, int] = (-1, -1)
) -> Tensor:
    """A window that reaches all keys before is taken for none, with what it hides behind."""
    window = (-1, -1) if window_size[0] >= k.shape[1] else window_size
    return windowed(q, k, v, causal, window, True)


def step(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """One query is attended by a path of its own, without its scale."""
    output = windowed(q, k, v, causal, (-1, -1), True)
    if q.shape[1] != 1:
        return output
    return windowed(q * q.shape[-1] ** 0.5 * 0.3, k, v, causal, (-1, -1), True)


def own_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The key with the number of a query counts more, so that its place among queries counts."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    bias = torch.eye(q.shape[1], k.shape[1], dtype=q.dtype)
    return scaled_dot_product_attention(query, key, value, bias).transpose(1, 2)


def other_heads(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """A head reads key and value of the head whose number is its own divided by their count."""
    heads = torch.arange(q.shape[2]) // k.shape[2]
    query, key, value = (t.transpose(1, 2) for t in (q, k[:, :, heads], v[:, :, heads]))
    size = q.shape[1], k.shape[1]
    seen = torch.ones(size, dtype=torch.bool).tril(size[1] - size[0]) if causal else None
    return scaled_dot_product_attention(query, key, value, seen).transpose(1, 2)


def masks_of_other_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Heads of a group lie side by side in the query, and apart in the mask."""
    groups = query.shape[1] // key.shape[1]
    if attn_mask is not None and attn_mask.dim() > 3 and attn_mask.shape[1] > 1:
        attn_mask = attn_mask.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return scaled_dot_product_attention(query, key, value, attn_mask, enable_gqa=enable_gqa)


@pytest.mark.parametrize(
    ("spec", "invariant", "cause"),
    [
        (sdpa(masks_of_other_heads), "grouped_heads_equal_expanded_heads", "mask_misplaced"),
        (sdpa(whole_blocks), "masked_slots_are_inert", "mask_ignored"),
        (sdpa(inverted), "future_does_not_leak", "mask_inverted"),
        (sdpa(by_chunks), "bias_is_added_to_scores", "mask_misplaced"),
        (sdpa(moved_back), "masking_equals_deleting", "keys_twice"),
        (sdpa(averaged), "agrees_with_scalar_reference", "rescaling"),
        (sdpa(softmax_in_half), "weights_sum_to_one", "precision"),
        (flash(first_rows), "window_leaves_the_keys_around", "rows_unwritten"),
        (flash(open_where_wide), "window_leaves_the_keys_around", "window_argument"),
        (flash(step), "query_alone_equals_query_among_others", "special_case"),
        (flash(own_key), "query_alone_equals_query_among_others", "place_counts"),
        (flash(uncausal), "window_leaves_the_keys_around", "causality"),
        (flash(other_heads), "heads_are_independent", "head_mapping"),
    ],
)
def test_a_mistake_that_is_made_in_some_calls_is_named(
    spec: Any, invariant: str, cause: str
) -> None:
    report = attnbench.check(spec, profile="quick", invariants=[invariant])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.cause == cause


def test_masks_and_causality_that_are_lost_together_have_one_cause() -> None:
    names = ["future_does_not_leak", "masked_slots_are_inert"]
    report = attnbench.check(sdpa(whole_blocks), profile="quick", invariants=names)
    failures = [o.failure for o in report.outcomes if o.failure is not None]
    assert len({failure.mistakes[:1] for failure in failures}) == 2
    assert {failure.cause for failure in failures} == {None, "mask_ignored"}


def kept() -> Any:
    """A function that hands out one buffer again and again."""
    buffers: dict[Any, Tensor] = {}

    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        output = scaled_dot_product_attention(query, key, value, attn_mask)
        if torch.is_grad_enabled() or not output.numel():
            return output
        return buffers.setdefault(output.shape, output).copy_(output)

    return attend


def test_an_output_that_a_later_call_overwrites_is_not_taken_for_one_of_that_call() -> None:
    names = ["calls_leave_no_trace", "outputs_are_final"]
    report = attnbench.check(sdpa(kept(), name="kept"), profile="quick", invariants=names)
    failures = [o.failure for o in report.outcomes if o.failure is not None]
    assert failures
    assert not any(failure.mistakes for failure in failures)


def test_nan_in_hidden_slots_is_no_sign_of_a_mistake_about_masks() -> None:
    spec = sdpa(scaled_dot_product_attention, conventions={"hidden_slots": "any"})
    report = attnbench.check(spec, profile="quick", invariants=["hidden_slots_may_hold_nan"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.mistakes == ()
    assert outcome.failure.cause == "poison"
    assert "sees no key" not in outcome.reason
