"""Where alone a failure shows, as calls beside its case tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.adapters import sdpa
from attnbench.cases.case import Case
from attnbench.checking.cause.extent import extent_of
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve

_HALVES = (torch.float16, torch.bfloat16)


def is_wrong_where(holds: Callable[[Tensor, Tensor], bool]) -> Callable[..., Tensor]:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = scaled_dot_product_attention(query, key, value)
        return output * 2 if holds(query, key) else output

    return attention


@pytest.mark.parametrize(
    ("holds", "case", "extent"),
    [
        (lambda q, k: True, Case((), 1, 9), ""),
        (lambda q, k: True, Case(dtype="float16"), ""),
        (lambda q, k: q.dtype in _HALVES, Case(dtype="float16"), "in half types alone"),
        (lambda q, k: q.dtype == torch.bfloat16, Case(dtype="bfloat16"), "in bfloat16 alone"),
        (lambda q, k: k.shape[-2] > 32, Case((), 1, 33), "where there are more than 32 keys"),
        (lambda q, k: k.shape[-2] > 32, Case((), 1, 36), ""),
        (
            lambda q, k: k.shape[-2] > 32 and k.shape[-2] % 32 > 0,
            Case((), 1, 33),
            "where there are more than 32 keys and no multiple of 32",
        ),
        (
            lambda q, k: k.shape[-2] > 6 and k.shape[-2] % 6 == 0,
            Case((), 1, 12),
            "with 12 keys, and not 11",
        ),
        (
            lambda q, k: k.shape[-2] % 16 == 0,
            Case((), 1, 16),
            "where the number of keys is a multiple of 16",
        ),
        (
            lambda q, k: k.shape[-2] % 4 == 0,
            Case((), 1, 4),
            "where the number of keys is a multiple of 4",
        ),
        (
            lambda q, k: k.shape[-2] > 16 and k.shape[-2] % 4 > 0,
            Case((), 1, 17),
            "where there are more than 16 keys and no multiple of 4",
        ),
        (lambda q, k: k.shape[-2] > 4, Case((), 1, 5), "where there are more than 4 keys"),
        (
            lambda q, k: q.shape[-2] < k.shape[-2] or k.shape[-2] > 8,
            Case((), 1, 2),
            "",
        ),
        (
            lambda q, k: q.shape[-2] > 12 and q.dtype in _HALVES,
            Case((), 13, 1, dtype="float16"),
            "where there are more than 12 queries, in half types alone",
        ),
        (lambda q, k: q.shape[-2] == 1, Case((), 1, 3), "where there is one query"),
        (lambda q, k: q.shape[-2] > 1, Case((), 2, 1), "where there are several queries"),
        (
            lambda q, k: q.shape[-2] == k.shape[-2],
            Case((), 2, 2),
            "where there are as many queries as keys",
        ),
        (
            lambda q, k: q.shape[-2] < k.shape[-2],
            Case((), 1, 2),
            "where there are fewer queries than keys",
        ),
        (lambda q, k: k.shape[-2] >= 6 * q.shape[-2], Case((), 1, 6), ""),
    ],
)
def test_the_extent_is_what_calls_beside_the_case_show(
    holds: Callable[[Tensor, Tensor], bool], case: Case, extent: str
) -> None:
    (subject,) = resolve(sdpa(is_wrong_where(holds), name="mine"))
    (invariant,) = select_invariants(["agrees_with_scalar_reference"])
    failure = Failure(case=case.id, smallest=True)
    assert extent_of(subject, invariant, failure) == extent
    assert extent_of(subject, invariant, Failure(case=case.id)) == ""


def test_a_call_beside_the_case_may_end_the_process() -> None:
    def leaves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key.shape[-2] > 40:
            raise SystemExit(3)
        return is_wrong_where(lambda q, k: k.shape[-2] > 32)(query, key, value)

    (subject,) = resolve(sdpa(leaves, name="mine"))
    (invariant,) = select_invariants(["agrees_with_scalar_reference"])
    failure = Failure(case=Case((), 1, 33).id, smallest=True)
    assert extent_of(subject, invariant, failure) == ""


def beside_a_boolean_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    output = scaled_dot_product_attention(query, key, value, attn_mask)
    return output if attn_mask is None or attn_mask.dtype != torch.bool else output * 2


def beside_causality(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    output = scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)
    return output * 2 if is_causal else output


@pytest.mark.parametrize(
    ("function", "mask", "extent"),
    [
        (beside_a_boolean_mask, "boolean", "where there is a boolean mask"),
        (beside_causality, "causal", "where there is causality"),
    ],
)
def test_masks_are_those_that_the_function_is_given(
    function: Callable[..., Tensor], mask: str, extent: str
) -> None:
    (subject,) = resolve(sdpa(function, name="mine"))
    (invariant,) = select_invariants(["agrees_with_scalar_reference"])
    failure = Failure(case=Case((), 1, 3, mask=mask).id, smallest=True)
    assert extent_of(subject, invariant, failure) == extent
