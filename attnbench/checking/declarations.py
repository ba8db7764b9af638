"""The declaration in a spec that allows its subject to violate an invariant by design."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from attnbench.cases.case import Case
from attnbench.checking.outcomes import KEEPS_CONTRACT
from attnbench.specs.conventions import Conventions
from attnbench.subject.subject import Subject

_KEYS = frozenset(field.name for field in fields(Conventions))

_ACCEPTS = {
    "scale_multiplies_scores": "scale",
    "grouped_heads_equal_expanded_heads": "enable_gqa",
    "window_leaves_the_keys_around": "window_size",
    "softcap_bounds_scores": "softcap",
    "sinks_take_weight_alone": "sinks",
    "alibi_slopes_lower_scores_by_distance": "alibi_slopes",
    "asking_for_weights_changes_nothing": "return_weights",
}
"""The argument that a property is about."""

_FIELDS = {
    "later_tokens_are_invisible": "causal=False",
    "outputs_see_no_more_than_the_window": "window=, the number of tokens that one sees,",
}
"""The field of the spec that says what holds instead of a property."""

_EXTRA_KEYS = ("extra_keys", "how many keys it adds")
_PER_HEAD = ("per_head", "True")
_EMPTY_ROWS = ("empty_rows", "mean, nan or refused")
_HIDDEN_SLOTS = ("hidden_slots", "finite")
_POSITIONS = ("positions", "relative or absolute")

_CONVENTIONS = {
    "agrees_with_float64": ("internal_dtype", "float32, bfloat16 or float16"),
    "decode_equals_prefill": ("causal", "top_left, square or always"),
    "empty_rows_give_zeros": _EMPTY_ROWS,
    "empty_rows_have_finite_gradients": _EMPTY_ROWS,
    "every_attendable_key_matters": ("causal", "always"),
    "hidden_keys_stay_hidden_at_extreme_scores": ("mask_value", "the number that stands for -inf"),
    "hidden_slots_may_hold_nan": _HIDDEN_SLOTS,
    "hidden_slots_may_hold_nan_in_training": _HIDDEN_SLOTS,
    "item_alone_equals_item_in_batch": _PER_HEAD,
    "keys_permute_freely": _POSITIONS,
    "leading_padding_equals_deleting": ("positions", "absolute"),
    "leading_sizes_fold": _PER_HEAD,
    "mask_forms_agree": ("masks", "those of boolean, floating, lengths and keys that it takes"),
    "masking_equals_deleting": _POSITIONS,
    "output_lies_within_values": _EXTRA_KEYS,
    "queries_permute_freely": _POSITIONS,
    "weights_sum_to_one": _EXTRA_KEYS,
}
"""The convention that says what holds instead of a property, and its values."""


def declaration(subject: Subject, invariant: str) -> str:
    """What to declare if the subject is meant to violate an invariant; empty for the contract.

    A convention, a field or a law says what holds instead, and keeps the rest of the suite in
    force; an exemption is offered where there is none of them.
    """
    spec = subject.spec
    if invariant == KEEPS_CONTRACT:
        return ""
    style = getattr(spec, "style", None)  # which declares its laws itself
    if invariant in subject.maker.laws and not style:  # a scoring function's pools_values is one
        return f'leave "{invariant}" out of the laws of the spec'
    if _ACCEPTS.get(invariant) in subject.accepts:
        return f'leave "{_ACCEPTS[invariant]}" out of accepts'
    if invariant in _FIELDS:
        return f"{_FIELDS[invariant]} in the spec says so"
    key, values = _CONVENTIONS.get(invariant, ("", ""))
    keys = subject.usual or _KEYS
    conventions = getattr(spec, "conventions", None)
    if key in keys and conventions is not None and key not in conventions:
        probed = "; attnbench.adapters.probe finds it" if style in ("sdpa", "flash") else ""
        return f"the convention {key} says so (--convention {key}=VALUE{probed}): {values}"
    if style and subject.address.source is not None:  # it has no spec
        return f'--exempt "{invariant}=why" skips it'
    return f'exempt={{"{invariant}": "why"}} in the spec skips it'


_SIZES: tuple[tuple[str, str, Callable[[Case], dict[str, Any]]], ...] = (
    ("as many keys as queries", "kv_len=s.q_len", lambda case: {"kv_len": case.q_len}),
    ("a size before L", "lead=s.lead or (1,)", lambda case: {"lead": case.lead or (2,)}),
    (
        "(batch, heads) before L",
        "lead=(*s.lead, 1, 1)[:2]",
        lambda case: {"lead": case.lead if case.lead[1:] else (2, 3)},
    ),
)
"""Sizes with which a subject may not raise, how to declare them, and what a case has then."""


def raising_remedy(subject: Subject, case: Case, *, smallest: bool) -> str:
    """What to declare if a subject raises at a case, and not at a similar one; otherwise empty."""
    if case.is_narrow:  # cases shrink to wider types if they can
        known = smallest and "float32" in subject.dtypes
        advice = 'dtypes=("float32", ...) in the spec, or --dtype float32'
        return f"it raises in half types only: {advice}" if known else ""
    if _answers(subject, case):
        return ""  # what raises is another call of the check
    if subject.kind == "layer":
        for size in (2, 4, 8, 16, 32, 64):
            other = case.replace(query_size=size, key_size=size, value_size=size)
            if case.query_size % size and _answers(subject, subject.legal(other)):
                multiple = f"sizes=lambda n: max(1, n // {size}) * {size}"
                return f"it does not raise at size {size}: {multiple}"
        return ""
    for sizes, declared, change in _SIZES:
        other = case.replace(**change(case))
        if other != case and subject.legal(other) == other and _answers(subject, other):
            return f"it does not raise with {sizes}: sizes=lambda s: s.replace({declared})"
    return ""


def _answers(subject: Subject, case: Case) -> bool:
    """Whether the subject gives an output at a case."""
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():
        subject.output(*subject.build(case))
        return True
    return False
