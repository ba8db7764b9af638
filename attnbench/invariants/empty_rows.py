"""Invariants on empty rows: a query with no key left."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from attnbench.cases.case import Case
from attnbench.hookspecs import hookimpl
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import differentiate, holds, reject
from attnbench.invariants.toolkit.derivations import benign, leaves_of
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_MASKS = ("empty_row", "padding", "lengths_2d", "causal", "floating", "boolean", "key_padding")

_VARIANTS = {"keys": ("all", "one"), "empty": ("rows", "item"), "more_queries": (1, 2, 3)}


def _emptied(subject: Subject, case: Case) -> Baseline:
    """Inputs that leave some query no key, in the form that the case's mask names."""
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


def _described(base: Baseline) -> str:
    """What hides the keys."""
    inputs = base.inputs
    lens = None if inputs.valid_lens is None else inputs.valid_lens.tolist()
    mask = inputs.attn_mask
    if inputs.is_causal:
        return f"is_causal=True, {inputs.query.shape[-2]} queries and {inputs.key.shape[-2]} keys"
    if mask is None:
        return f"valid_lens={lens}"
    return f"a {str(mask.dtype).removeprefix('torch.')} mask {tuple(mask.shape)}"


def _zeros(subject: Subject, case: Case) -> None:
    base = _emptied(subject, case)
    got = base.output
    dead = ~base.allowed.any(-1, keepdim=True).expand(got.shape)
    what = f"with {_described(base)}, output"
    holds(~dead | (got == 0), what, got, "0: no key is left to this query")
    holds(dead | got.isfinite(), what, got, "finite: only another query has no key left")


def _finite_gradients(subject: Subject, case: Case) -> None:
    base = _emptied(subject, case)
    inputs, named = leaves_of(base.module, base.inputs)
    total = base.run(inputs).sum()
    if total.grad_fn is None:
        return  # zeros alone: nothing that a gradient could reach
    gradients = differentiate(total, list(named.values()))
    for name, gradient in zip(named, gradients, strict=True):
        if gradient is not None:
            holds(
                gradient.isfinite(),
                f"with {_described(base)}, gradient of output.sum() by {name}",
                gradient,
                "finite, though some query has no key left",
            )


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on empty rows."""
    yield Invariant(
        name="empty_rows_give_zeros",
        statement="A query with no key left has zeros as its output, and the others are finite.",
        check=_zeros,
        cases=lambda subject: benign(subject, masks=_MASKS, variants=_VARIANTS),
    )
    yield Invariant(
        name="empty_rows_have_finite_gradients",
        statement="A query with no key left makes no gradient NaN or infinite.",
        check=_finite_gradients,
        cases=lambda subject: benign(subject, masks=_MASKS, variants=_VARIANTS),
    )
