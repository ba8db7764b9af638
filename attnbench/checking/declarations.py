"""The declaration in a spec that allows its subject to violate an invariant by design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from attnbench.checking.outcomes import CONTRACT
from attnbench.specs import LayerSpec
from attnbench.specs.conventions import LAYER_DEFAULTS, Conventions
from attnbench.subject.subject import Subject

_CONVENTIONS: Mapping[str, tuple[str, str]] = {
    "empty_rows_give_zeros": ("empty_rows", "mean, nan or refused"),
    "empty_rows_have_finite_gradients": ("empty_rows", "nan or refused"),
    "hidden_slots_may_hold_nan": ("hidden_slots", "finite"),
    "hidden_slots_may_hold_nan_in_training": ("hidden_slots", "finite"),
    "decode_equals_prefill": ("causal", "top_left, square or always"),
    "every_attendable_key_matters": ("causal", "always"),
    "keys_permute_freely": ("positions", "relative or absolute"),
    "queries_permute_freely": ("positions", "relative or absolute"),
    "masking_equals_deleting": ("positions", "relative or absolute"),
    "leading_padding_equals_deleting": ("positions", "absolute"),
    "single_key_gets_weight_one": ("extra_keys", "how many keys it adds"),
    "weights_sum_to_one": ("extra_keys", "how many keys it adds"),
    "constant_values_come_back": ("extra_keys", "how many keys it adds"),
    "output_lies_within_values": ("extra_keys", "how many keys it adds"),
    "item_alone_equals_item_in_batch": ("per_head", "True"),
    "heads_are_independent": ("per_head", "True"),
    "leading_sizes_fold": ("per_head", "True"),
    "agrees_with_float64": ("internal_dtype", "float32, bfloat16 or float16"),
    "hidden_keys_stay_hidden_at_extreme_scores": ("mask_value", "the number that stands for -inf"),
    "mask_forms_agree": ("masks", "those of boolean, floating, lengths and keys that it takes"),
}
"""The convention that replaces an invariant, and its values."""

_KEYS = frozenset(field.name for field in fields(Conventions))

_ACCEPTS: Mapping[str, str] = {
    "scale_multiplies_scores": "scale",
    "grouped_heads_equal_expanded_heads": "enable_gqa",
    "window_leaves_the_keys_around": "window_size",
    "softcap_bounds_scores": "softcap",
    "sinks_take_weight_alone": "sinks",
    "alibi_slopes_lower_scores_by_distance": "alibi_slopes",
    "asking_for_weights_changes_nothing": "return_weights",
}
"""The keyword argument that an invariant is about."""

_FIELDS: Mapping[str, str] = {
    "later_tokens_are_invisible": "causal=False",
    "outputs_see_no_more_than_the_window": "window=, the number of tokens that one sees",
}
"""The field of a layer's spec that replaces an invariant."""


def declaration(subject: Subject, invariant: str) -> str:
    """What to declare if the subject is meant to violate an invariant; empty for the contract.

    A convention, a field or a law says what holds instead, and keeps the rest of the suite in
    force; an exemption is offered where there is none of them.
    """
    spec = subject.spec
    if invariant == CONTRACT:
        return ""
    if invariant in subject.maker.laws:  # a scoring function obeys pools_values undeclared
        return f'leave "{invariant}" out of the laws of the spec'
    if _ACCEPTS.get(invariant) in subject.accepts:
        return f'leave "{_ACCEPTS[invariant]}" out of accepts'
    if isinstance(spec, LayerSpec) and invariant in _FIELDS:
        return f"{_FIELDS[invariant]} in the spec says so"
    key, values = _CONVENTIONS.get(invariant, ("", ""))
    keys = LAYER_DEFAULTS if isinstance(spec, LayerSpec) else _KEYS
    conventions = getattr(spec, "conventions", None)
    if key in keys and conventions is not None and key not in conventions:
        return f"the convention {key} says so: {values}"
    return f'exempt={{"{invariant}": "why"}} in the spec skips it'
