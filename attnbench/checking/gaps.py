"""What the declarations of a spec leave untested, and what they would allow by design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.specs import DTYPES, LayerSpec
from attnbench.specs.conventions import Conventions, format_conventions

if TYPE_CHECKING:
    from attnbench.subject.subject import Subject

HEAVY = 4
"""The weight from which a gap is shown in bold: a usual bug passes."""

_NO_REFERENCE = "no reference: a wrong but self-consistent formula would pass"
_NO_GRADIENTS = ("gradients were not looked at", "the convention gradients=True, if it has any")
_DECODES = "padded_rows_decode_as_alone"


@dataclass(frozen=True)
class Gap:
    """Something that a check did not test.

    Args:
        subject: name of the subject.
        weight: from 1 (it hardly hides a bug) to 4 (a usual bug passes).
        what: what was not tested, and which bugs pass therefore.
        remedy: the declaration in the spec that would change it; empty if there is none.
        tested_by: an invariant whose failure closes the gap; empty if there is none.
    """

    subject: str
    weight: int
    what: str
    remedy: str
    tested_by: str = ""


def gaps_of(subject: Subject) -> tuple[Gap, ...]:
    """The gaps that follow from what a subject's spec declares, the heaviest first."""
    spec, gradients = subject.spec, subject.conventions.gradients
    entries = _of_layer(subject, spec) if isinstance(spec, LayerSpec) else _of_call(subject)
    entries.append((not gradients, 2, *_NO_GRADIENTS))
    variants, address = [*filter(None, getattr(spec, "variants", ()))], subject.address
    if variants and not address.options and address.source is not None:
        first = replace(address, options=variants[0])  # those of installed subjects have names
        told = f"its variants were not tried; check them too, such as '{first}'"
        entries.append((True, 2, told, ""))
    gaps = [Gap(subject.name, weight, *fields) for holds, weight, *fields in entries if holds]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


_Entries = list[tuple[bool, int, *tuple[str, ...]]]
"""Whether it is a gap, and the fields of the gap but its subject."""


def _of_call(subject: Subject) -> _Entries:
    """The gaps of a scoring function, a kernel or a mechanism."""
    alone = subject.maker.reference is None and getattr(subject.maker, "same_as", None) is None
    if subject.scoring is not None:
        remedy = "reference=lambda module, q, k, i, j: ... (the score of q at i and k at j)"
        return [(alone, 3, _NO_REFERENCE, remedy)]
    adapted = hasattr(subject.spec, "style")  # without masks, its signature has none
    idle = getattr(subject.maker, "idle_dropout", False) and "dropout_p" not in subject.accepts
    made = "dropout was not looked at: it was made with dropout 0"
    dropped = '"dropout_p" in accepts, if its outputs keep their mean'
    unmasked = not (subject.conventions.masks or adapted)
    remedy = "same_as= and the subject that it should equal"
    if not subject.conventions.per_head:  # a reference does not know the head
        remedy = f'reference=, or {remedy}, such as "scaled_dot"'
    return [
        (alone, 3, _NO_REFERENCE, remedy),
        (unmasked, 2, "no mask was tried", "the convention masks, if it takes any"),
        (idle, 2, made, dropped),
    ]


def _of_layer(subject: Subject, spec: LayerSpec) -> _Entries:
    padding, cache, grid = "padding_mask" in spec.accepts, spec.cache is not None, spec.grid
    alone, decodes = spec.same_as is None and spec.reference is None, padding and cache
    left, right = (f"{side}_padding_is_inert" for side in ("left", "right"))
    narrower = [name for name in DTYPES if name not in subject.dtypes]
    empty = {"nan": "give NaN", "refused": "raise"}.get(subject.conventions.empty_rows, "")
    fixed = not spec.causal and subject.conventions.positions == "absolute"
    fixed = fixed and "positions" not in spec.conventions  # where it is said, it is known
    mixes = subject.conventions.positions != "none"  # causal without an order: tokens stay apart
    cached = "padding with a cache was not tested"
    prompts = "prompts padded at the right, then decoded, were not tested"
    future = "it is not causal: later tokens may reach earlier ones"
    here = " (here --convention causal=always)" if subject.address.source is not None else ""
    declared = f"causal=True{here}, if it should be"
    uncached = "no cache was tried: decoding was not tested"
    held = "cache=CacheSpec(new=...), or adapters.layer(...), which finds one that is given back"
    same = 'reference=, or same_as="..." (a layer with the same state_dict and outputs)'
    transposes = "transposes_with_the_grid"
    moved = "tokens in another order were not tried"
    turned = "the grid was not transposed: rows may be taken for columns"
    drops = f"items without a real token {empty}, and were not tried"
    real = f'laws=("{right}",), if its positions count real tokens only'
    return [
        (alone, 2, _NO_REFERENCE, same),
        (grid and transposes not in subject.laws, 2, turned, f'laws=("{transposes}",)'),
        (fixed, 2, moved, 'the convention positions="none" if positions do not count'),
        (decodes and left not in subject.laws, HEAVY, cached, f'laws=("{left}",)', _DECODES),
        (decodes and right not in subject.laws, 3, prompts, real),
        (bool(narrower), 2, f"not tried in {' and '.join(narrower)}", "dtypes"),
        (bool(empty and padding), 3, drops, "the convention empty_rows=zeros"),
        (spec.causal and mixes and not cache, 2, uncached, held),
        (not spec.causal and not grid, 3, future, declared),
    ]


def coverage_of(
    gaps: Iterable[Gap], laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]
) -> tuple[Gap, ...]:
    """The gaps of some subjects and those that only the outcomes show, the heaviest first."""
    outcomes = list(outcomes)
    failed = {(o.subject, o.invariant) for o in outcomes if o.status == "failed"}
    untested = [gap for gap in gaps if (gap.subject, gap.tested_by) not in failed]
    gaps = [*untested, *_untested_laws(laws, outcomes)]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


def _untested_laws(laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]) -> Iterator[Gap]:
    """The declared laws that ran on no case, unless nothing could run."""
    outcomes = list(outcomes)
    broken = {o.subject for o in outcomes if o.invariant == KEEPS_CONTRACT and not o.ok}
    for outcome in outcomes:
        is_declared = outcome.invariant in laws.get(outcome.subject, ())
        ran = outcome.cases or outcome.status not in ("skipped", "inconclusive")
        if is_declared and not ran and outcome.subject not in broken:
            law = f"the law {outcome.invariant} is declared, but ran on no case"
            yield Gap(outcome.subject, 3, f"{law}: {outcome.reason}", "")


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

_EXTRA_KEYS = ("extra_keys", (1, 2))
_PER_HEAD = ("per_head", (True,))
_EMPTY_ROWS = ("empty_rows", ("mean", "nan", "refused"))
_HIDDEN_SLOTS = ("hidden_slots", ("finite",))
_POSITIONS = ("positions", ("relative", "absolute"))

_CONVENTIONS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "agrees_with_float64": ("internal_dtype", ("float32", "bfloat16", "float16")),
    "decode_equals_prefill": ("causal", ("top_left", "square", "always")),
    "empty_rows_give_zeros": _EMPTY_ROWS,
    "empty_rows_have_finite_gradients": _EMPTY_ROWS,
    "every_attendable_key_matters": ("causal", ("always",)),
    "hidden_keys_stay_hidden_at_extreme_scores": ("mask_value", (-1e4, -1e6, -1e9)),
    "hidden_slots_may_hold_nan": _HIDDEN_SLOTS,
    "hidden_slots_may_hold_nan_in_training": _HIDDEN_SLOTS,
    "item_alone_equals_item_in_batch": _PER_HEAD,
    "keys_permute_freely": _POSITIONS,
    "leading_padding_equals_deleting": ("positions", ("absolute",)),
    "leading_sizes_fold": _PER_HEAD,
    "mask_forms_agree": ("masks", (("boolean",), ("floating",), ("keys",), ())),
    "masking_equals_deleting": _POSITIONS,
    "output_lies_within_values": _EXTRA_KEYS,
    "queries_permute_freely": _POSITIONS,
    "weights_sum_to_one": _EXTRA_KEYS,
}
"""The convention by which a property does not hold, and its values, what promises most first."""


def declarations(subject: Subject, invariant: str) -> Iterator[tuple[str, Subject]]:
    """Conventions by which a subject may violate an invariant: each in words, and the subject."""
    spec: Any = subject.spec
    key, values = _CONVENTIONS.get(invariant, ("", ()))
    stated = getattr(spec, "conventions", None)
    if stated is None or key in stated or key not in (subject.usual or _KEYS):
        return
    for value in values:
        declared = replace(spec, conventions={**stated, key: value})
        text = f"--convention {format_conventions({key: value})}"
        if not hasattr(spec, "style"):
            text = f'conventions={{"{key}": {value!r}}} in the spec'
        yield f"with {text}, what failed holds", replace(subject, spec=declared)


def declaration(subject: Subject, invariant: str) -> str:
    """What to declare if the subject is meant to violate an invariant; empty for the contract.

    A field or a law says what holds instead, and keeps the rest of the suite in force; an exemption
    is offered where there is none of them.
    """
    spec = subject.spec
    if invariant == KEEPS_CONTRACT:
        return ""
    style = getattr(spec, "style", None)  # which declares its laws itself
    is_found = bool(style or getattr(spec, "notes", ())) and subject.address.source is not None
    if invariant in subject.maker.laws and not style and not is_found:  # pools_values is one
        return f'leave "{invariant}" out of the laws of the spec'
    if _ACCEPTS.get(invariant) in subject.accepts:
        return f'leave "{_ACCEPTS[invariant]}" out of accepts'
    if is_found:  # it has no spec
        return f'--exempt "{invariant}=why" skips it'
    if invariant in _FIELDS:
        return f"{_FIELDS[invariant]} in the spec says so"
    return f'exempt={{"{invariant}": "why"}} in the spec skips it'
