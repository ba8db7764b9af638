"""Invariants on the forms of masks: equivalent forms agree, and several forms combine."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import CaseStrategy, changed
from attnbench.errors import RefusalError
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, same_gradients
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import (
    FREE_MASKS,
    benign,
    has_gradients,
    leaves_of,
    masks_in_words,
    with_mask,
)
from attnbench.oracle.references import allowed_and_bias
from attnbench.subject.subject import Subject

_LENGTH_DTYPES = ("int64", "int32", "int16", "uint8", "int8")
_PARTS = {
    "also_mask": ("none", "boolean", "floating"),
    "also_lengths": ("none", "per_item", "per_query"),
    "rows": ("live", "any"),
}
"""The variants that are combined with ``is_causal``."""

_GRADIENT_CASES = tuple(
    Case((2,), 3, 5, dtype="float64", mask="causal").tried(
        also_mask=mask, also_lengths=lengths, rows="live"
    )
    for mask, lengths in (
        ("none", "per_query"),
        ("boolean", "per_item"),
        ("floating", "none"),
        ("floating", "per_query"),
    )
)
"""One of each sort where gradients are compared, too."""

_FORMS = tuple(mask for mask in FREE_MASKS if mask not in ("bias", "floating", "causal_padding"))


@invariant(
    cases=benign,
    masks=_FORMS,
    max_len=65,
    beyond=(Case((1,), 140, 140, mask="causal"), Case((2,), 3, 520, mask="padding")),
    variants={"lengths_in": _LENGTH_DTYPES},
)
def mask_forms_agree(subject: Subject, case: Case) -> None:
    """Boolean and floating masks, lengths and is_causal that hide the same keys give one output."""
    base = Baseline(subject, case)
    lens = base.inputs.valid_lens
    if lens is not None:
        narrow = case.kv_len > torch.iinfo(torch.int8).max
        dtype = torch.int8 if narrow else getattr(torch, case.variant("lengths_in", "int64"))
        lens = lens.clamp_max(torch.iinfo(dtype).max).to(dtype)
        base = base.on(base.inputs.replace(valid_lens=lens))
    given = f"hiding the same by {masks_in_words(base.inputs)}"
    if case.mask == "none":
        given = "no mask"
    added = torch.zeros_like(base.allowed, dtype=base.inputs.query.dtype)
    forms = {
        "a boolean mask (..., L, S)": base.allowed,
        "a floating mask (..., L, S) of 0 and -inf": added.masked_fill(~base.allowed, -math.inf),
    }
    refusal = None
    for form, mask in forms.items():
        try:
            got = base.run(with_mask(base.inputs, mask))
        except RefusalError as error:  # one form says something, too
            if refusal is not None:
                raise
            refusal = error
            continue
        base.expect(got, f"with {form}, output", given)


def _combinations(subject: Subject) -> CaseStrategy:
    equal = functools.partial(_with_equal_leads, subject)
    turned = functools.partial(_with_more_queries, subject)
    one_key = functools.partial(_with_more_queries, subject, kv_len=1)
    space = benign(
        subject,
        masks=("causal",),
        leads=(1, 2),
        min_kv_len=2,
        beyond=_GRADIENT_CASES,
        variants=_PARTS,
    )
    return changed(space, lambda case: case, equal, equal, turned, one_key)


@invariant(cases=_combinations)
def causal_and_padding_combine(subject: Subject, case: Case) -> None:
    """is_causal, lengths and a mask together hide what any of them hides."""
    base = Baseline(subject, case)
    shape = (*case.lead, case.q_len, case.kv_len)
    kind, lengths = case.variant("also_mask", "none"), case.variant("also_lengths", "none")
    given, live_rows = base.inputs, case.variant("rows", "any") == "live"
    if kind != "none":
        mask = torch.rand(shape, generator=base.generator) < 0.6
        mask[..., 0] |= live_rows
        bias = torch.randn(shape, generator=base.generator).to(given.query.dtype)
        part = mask if kind == "boolean" else bias.masked_fill(~mask, -math.inf)
        given = given.replace(attn_mask=part.to(case.device))
    if lengths != "none":
        sizes = case.lead[:1] if lengths == "per_item" else (case.lead[0], case.q_len)
        lens = torch.randint(int(live_rows), case.kv_len + 1, sizes, generator=base.generator)
        given = given.replace(valid_lens=lens.to(case.device))
    before = None if given.attn_mask is None else given.attn_mask.clone()
    base = base.on(given)
    allowed, bias = allowed_and_bias(given)
    whole = (
        allowed
        if kind != "floating"
        else bias.to(given.query.dtype).masked_fill(~allowed, -math.inf)
    )
    one, together = "with one mask (..., L, S) of all", f"{masks_in_words(given)} together"
    live = allowed.any(-1, keepdim=True).to(case.device)

    def rows(output: Tensor) -> Tensor:
        """The output without rows that have no key, of which other invariants tell."""
        return output.masked_fill(~live, 0.0)

    got = base.run(with_mask(given, whole.to(case.device)))
    base.expect(rows(got), f"{one}, output", together, taken=rows)
    if has_gradients(subject, case) and bool(live.all()):
        inputs, leaves = leaves_of(base.module, given)
        if kind == "floating" and "bias_gets_its_gradient" not in subject.exempt:
            leaves["attn_mask"] = part.detach().to(case.device).requires_grad_()
            inputs = inputs.replace(attn_mask=leaves["attn_mask"])
            whole = leaves["attn_mask"].masked_fill(~allowed.to(case.device), -math.inf)
        got, expected = base.run(with_mask(inputs, whole.to(case.device))), base.run(inputs)
        weight = base.other(base.output)
        same_gradients(got, expected, leaves, weight, one, together, eps=base.eps)
    if before is not None and given.attn_mask is not None:
        agree_within(given.attn_mask, before, 0.0, "attn_mask after the call", "it before")


def _with_equal_leads(subject: Subject, case: Case) -> Case:
    """The case with leading sizes of L, where no shape tells heads from queries."""
    size = min(case.q_len, 4)
    equal = subject.legal(case.replace(lead=(size,) * len(case.lead), q_len=size))
    return equal if equal.q_len == size else case


def _with_more_queries(subject: Subject, case: Case, *, kv_len: int | None = None) -> Case:
    """The case with more queries than keys, so that the first ones come before every key."""
    turned = case.replace(q_len=case.kv_len, kv_len=kv_len or case.q_len)
    return turned if subject.legal(turned.replace(mask="none")).sizes == turned.sizes else case
