"""Gaps of a check: what it did not test, by weight, and the declaration that would change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.specs import DTYPES, LayerSpec

if TYPE_CHECKING:
    from attnbench.subject.subject import Subject

HEAVY = 4
"""The weight from which a gap is shown in bold: a usual bug passes."""

_NO_REFERENCE = "no reference: a wrong but self-consistent formula would pass"
_NO_BOOLEAN = (
    "no boolean mask was tried",
    "the convention masks=boolean+floating, if it takes any",
)
_NO_GRADIENTS = ("gradients were not looked at", "the convention gradients=True, if it has any")
_REAL = "if its positions count real tokens only"
_DECODES = "padded_rows_decode_as_alone"
_ANY_SLOTS = "the convention hidden_slots=any, if it computes nothing from what is hidden"
_TURNED = "the grid was not transposed: rows may be taken for columns"


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
    entries += [(not gradients, 2, *_NO_GRADIENTS), *_of_variants(subject)]
    gaps = [Gap(subject.name, weight, *fields) for holds, weight, *fields in entries if holds]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


_Entries = list[tuple[bool, int, *tuple[str, ...]]]
"""Whether it is a gap, and the fields of the gap but its subject."""


def _of_variants(subject: Subject) -> _Entries:
    """The gap of variants that a spec in a file lists; those of installed subjects have names."""
    variants = [*filter(None, getattr(subject.spec, "variants", ()))]
    address = subject.address
    if not variants or address.options or address.source is None:
        return []
    first = replace(address, options=variants[0])
    return [(True, 2, f"its variants were not tried; check them too, such as '{first}'", "")]


def _of_call(subject: Subject) -> _Entries:
    """The gaps of a scoring function, a kernel or a mechanism."""
    alone = subject.maker.reference is None and getattr(subject.maker, "same_as", None) is None
    masks, weights = subject.conventions.masks, subject.gives_weights
    adapted = hasattr(subject.spec, "style")  # without masks, its signature has none
    finite = subject.conventions.hidden_slots == "finite" and {"boolean", "lengths"} & {*masks}
    unpoisoned = "hidden slots held finite numbers only: NaN in padding may reach the output"
    if subject.scoring is not None:
        remedy = "reference=lambda module, q, k, i, j: ... (the score of q at i and k at j)"
        return [(alone, 3, _NO_REFERENCE, remedy)]
    idle = getattr(subject.maker, "idle_dropout", False) and "dropout_p" not in subject.accepts
    made = "dropout was not looked at: it was made with dropout 0"
    dropped = '"dropout_p" in accepts, if its outputs keep their mean'
    seen = "its weights were not looked at, only the output"
    own = 'laws=("pools_values",) if it pools values as they are, or "return_weights" in accepts'
    if getattr(subject.spec, "style", "") == "textbook":  # small calls have tried both
        seen += ": it neither hands back weights (B, L, S) nor keeps them in attention_weights"
        own = ""
    remedy = "same_as= and the subject that it should equal"
    if not subject.conventions.per_head:  # a reference does not know the head
        remedy = f'reference=, or {remedy}, such as "scaled_dot"'
    return [
        (alone, 3, _NO_REFERENCE, remedy),
        (not (masks or adapted), 2, "no mask was tried", "the convention masks, if it takes any"),
        ("floating" in masks and "boolean" not in masks, 1, *_NO_BOOLEAN),
        (bool(finite), 1, unpoisoned, _ANY_SLOTS),
        (idle, 2, made, dropped),
        (not weights, 1, seen, own),
    ]


def _of_layer(subject: Subject, spec: LayerSpec) -> _Entries:
    padding, cache = "padding_mask" in spec.accepts, spec.cache is not None
    alone, decodes = spec.same_as is None and spec.reference is None, padding and cache
    left, right = (f"{side}_padding_is_inert" for side in ("left", "right"))
    cached = "padding with a cache was not tested"
    prompts = "prompts padded at the right, then decoded, were not tested"
    future = "it is not causal: later tokens may reach earlier ones"
    unpadded = "it takes no padding_mask: padding was not tested"
    uncached = "it has no cache: decoding was not tested"
    same = 'reference=, or same_as="..." (a layer with the same outputs)'
    transposes = "transposes_with_the_grid"
    moved = "tokens in another order were not tried"
    empty = "items without a real token give NaN, and were not tried"
    narrower = [name for name in DTYPES if name not in subject.dtypes]
    drops = subject.conventions.empty_rows == "nan"
    free = spec.causal or subject.conventions.positions != "absolute"
    return [
        (alone, 2, _NO_REFERENCE, same),
        (spec.grid and transposes not in subject.laws, 2, _TURNED, f'laws=("{transposes}",)'),
        (not free, 2, moved, 'the convention positions="none" if positions do not count'),
        (decodes and left not in subject.laws, HEAVY, cached, f'laws=("{left}",)', _DECODES),
        (decodes and right not in subject.laws, 3, prompts, f'laws=("{right}",), {_REAL}'),
        (bool(narrower), 2, f"not tried in {' and '.join(narrower)}", "dtypes"),
        (drops and padding, 3, empty, "the convention empty_rows=zeros"),
        (not padding and not spec.grid, 1, unpadded, '"padding_mask" in accepts, if it takes one'),
        (not cache and not spec.grid, 2, uncached, "cache=CacheSpec(new=...), if it has one"),
        (not spec.causal and not spec.grid, 2, future, "causal=True, if it should be"),
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
