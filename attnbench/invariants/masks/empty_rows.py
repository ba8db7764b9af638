"""Invariants on empty rows: a query with no key left."""

from __future__ import annotations

import math

import torch

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.applicability import any_of, has_no_gradients, knows_positions
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import holds, needs, reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import benign, leaves_of, masks_in_words, unmasked
from attnbench.invariants.toolkit.slopes import gradients_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_MASKS = (
    "empty_row",
    "padding",
    "lengths_2d",
    "causal",
    "causal_padding",
    "floating",
    "boolean",
    "key_padding",
)

_VARIANTS = {
    "keys": ("all", "one"),
    "empty": ("rows", "item", "columns"),
    "more_queries": (1, 2, 3),
}


def _emptied(subject: Subject, case: Case) -> Baseline:
    """Inputs in which some query has no allowed key, in the form of the case's mask."""
    base = _with_empty_rows(subject, case)
    if bool(base.allowed.any(-1).all()):
        reject("no row is empty")
    return base


def _with_empty_rows(subject: Subject, case: Case) -> Baseline:
    if case.mask == "causal":  # more queries than keys: the first ones come before every key
        kv_len = 1 if case.variant("keys", "all") == "one" else case.kv_len
        longer = case.replace(
            mask="none", q_len=kv_len + case.variant("more_queries", 1), kv_len=kv_len
        )
        if subject.legal(longer) != longer:
            reject("q_len cannot exceed kv_len")
        base = Baseline(subject, longer)
        return base.on(base.inputs.replace(is_causal=True))
    base = Baseline(subject, case)
    mask, lens = base.inputs.attn_mask, base.inputs.valid_lens
    if case.mask == "empty_row":
        return base
    if case.mask == "causal_padding":  # what each leaves, they may hide together
        last = torch.arange(case.kv_len, device=case.device) >= 1
        lens = torch.full_like(lens, case.kv_len) if lens is not None else None
        return base.on(base.inputs.replace(attn_mask=last.unsqueeze(0), valid_lens=lens))
    if (
        lens is not None and case.variant("empty", "rows") == "columns"
    ):  # one boolean for all keys of a query
        shown = torch.arange(case.q_len, device=case.device) != base.choose(case.q_len)
        return base.on(base.inputs.replace(attn_mask=shown.unsqueeze(-1)))
    if lens is not None:
        lens = lens.clone()
        lens[base.choose(len(lens))] = 0  # a whole item, or all queries of one
        return base.on(base.inputs.replace(valid_lens=lens))
    assert mask is not None
    mask = mask.clone()
    row = base.choose(mask.shape[-2])
    whole = mask.dim() > 2 and case.variant("empty", "rows") == "item"
    index = (0,) if whole else (..., row)
    mask[(*index, slice(None))] = False if mask.dtype == torch.bool else -math.inf
    return base.on(base.inputs.replace(attn_mask=mask))


def _opened(base: Baseline) -> Inputs:
    """The same inputs, with every key allowed for rows that have none."""
    allowed = base.allowed | ~base.allowed.any(-1, keepdim=True)
    mask = base.inputs.attn_mask
    if mask is None or mask.dtype == torch.bool:
        return unmasked(base.inputs).replace(attn_mask=allowed)
    mask = mask.masked_fill(mask == -math.inf, 0.0).expand(allowed.shape)
    return unmasked(base.inputs).replace(attn_mask=mask.masked_fill(~allowed, -math.inf))


def _takes_them(subject: Subject) -> str | None:
    if subject.conventions.empty_rows == "refused":
        return "rows without keys are refused (convention empty_rows)"
    longer = subject.legal(Case(q_len=3, kv_len=2))
    top = subject.conventions.causal != "bottom_right" or longer.q_len <= longer.kv_len
    kinds = [kind for kind in _MASKS if not (top and kind == "causal")]
    if not any(subject.takes_mask(kind) for kind in kinds):
        return "no mask that it takes leaves a query without keys"
    if subject.kind == "kernel":
        return "attend opens rows without keys before a kernel is called: it never sees one"
    return None


def _is_even(subject: Subject) -> str | None:
    return knows_positions(subject) if subject.conventions.empty_rows == "mean" else None


@invariant(cases=benign, masks=_MASKS, variants=_VARIANTS, applies=any_of(_takes_them, _is_even))
def empty_rows_give_zeros(subject: Subject, case: Case) -> None:
    """A query with no key left has zeros as its output (or what the convention empty_rows says),
    and the others are what they are without it.
    """
    base = _emptied(subject, case)
    got, convention = base.output, subject.conventions.empty_rows
    empty = ~base.allowed.any(-1, keepdim=True)
    what = f"with {masks_in_words(base.inputs)}, output"
    where = empty.expand(got.shape)
    if convention == "zeros":
        zeros = ~where | (got == 0)
        if not bool(zeros.all()):  # a projection behind may have a bias, as where values are zeros
            given = unmasked(base.inputs)
            zeros |= got == base.run(given.replace(value=torch.zeros_like(given.value)))
        holds(zeros, what, got, "0: no key is left to this query")
    holds(where | got.isfinite(), what, got, "finite: only another query has no key left")
    if convention == "mean":
        # equal keys share equally, whatever the values are made into
        key = base.inputs.key[..., :1, :].expand_as(base.inputs.key).contiguous()
        even = base.on(unmasked(base.inputs).replace(key=key))
        even.expect(
            got.masked_fill(~empty, 0.0),
            f"{what} of a query with no key left",
            "a call in which all keys are equal, hence the mean of all values,",
            taken=lambda output: output.masked_fill(~empty, 0.0),
        )
    if subject.conventions.causal == "always":
        return
    opened = _opened(base)
    # where queries count on each other, or a key is seen by the opened row alone, others may move
    apart = "query_alone_equals_query_among_others" not in subject.exempt
    if apart and bool((opened.allowed.any(-2) == base.allowed.any(-2)).all()):
        base.on(opened).expect(
            got.masked_fill(empty, 0.0),
            f"{what} of the other queries",
            "the call in which that query has keys",
            taken=lambda output: output.masked_fill(empty, 0.0),
        )
    if convention == "zeros" and "return_weights" in subject.accepts:
        weights = needs(subject.weights(base.module, base.inputs))
        what, should = f"with {masks_in_words(base.inputs)}, weights", "0: no key is left to it"
        holds(~empty | (weights == 0), what, weights, should)


def _is_finite(subject: Subject) -> str | None:
    if subject.conventions.empty_rows == "nan":
        return "rows without keys are NaN, and so may be their gradients (convention empty_rows)"
    return None


@invariant(
    cases=benign,
    masks=_MASKS,
    variants=_VARIANTS,
    applies=any_of(_takes_them, _is_finite, has_no_gradients),
)
def empty_rows_have_finite_gradients(subject: Subject, case: Case) -> None:
    """A query with no key left makes no gradient NaN or infinite."""
    base = _emptied(subject, case)
    inputs, named = leaves_of(base.module, base.inputs)
    total = base.run(inputs).sum()
    if total.grad_fn is None:
        return  # zeros alone: nothing that a gradient could reach
    for name, gradient in gradients_of(total, named).items():
        if gradient is not None:
            holds(
                gradient.isfinite(),
                f"with {masks_in_words(base.inputs)}, gradient of output.sum() by {name}",
                gradient,
                "finite, though some query has no key left",
            )
