"""Gaps of a check: what it did not test, by weight, and the declaration that would change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.checking.outcomes import Outcome
from attnbench.specs import LayerSpec

if TYPE_CHECKING:
    from attnbench.subject.subject import Subject

HEAVY = 4
"""The weight from which a gap is shown in bold: a usual bug passes."""

_PADDED = "padding with a cache was not tested"
_DECODES = "padded_rows_decode_as_alone"
"""The invariant that tests it too, for layers that promise it in calls without a cache."""


@dataclass(frozen=True)
class Gap:
    """Something that a check did not test.

    Args:
        subject: name of the subject.
        weight: from 1 (it hardly hides a bug) to 4 (a usual bug passes).
        what: what was not tested, and which bugs pass therefore.
        remedy: the declaration in the spec that would change it.
    """

    subject: str
    weight: int
    what: str
    remedy: str


def gaps_of(subject: Subject) -> tuple[Gap, ...]:
    """The gaps that follow from what a subject's spec declares, the heaviest first."""
    spec = subject.spec
    entries = _of_layer(subject, spec) if isinstance(spec, LayerSpec) else _of_call(subject)
    if not subject.conventions.gradients:
        entries = [*entries, (2, "gradients were not looked at", "the convention gradients=True")]
    gaps = [Gap(subject.name, weight, what, remedy) for weight, what, remedy in entries]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


_Entries = list[tuple[int, str, str]]


def _of_call(subject: Subject) -> _Entries:
    """The gaps of a scoring function, a kernel or a mechanism."""
    entries: _Entries = []
    if subject.maker.reference is None and getattr(subject.maker, "same_as", None) is None:
        remedy = "reference=lambda module, q, k, i, j: ... (the score of q at i and k at j)"
        if subject.scoring is None:
            remedy = 'reference=, or same_as="scaled_dot" or what else it should equal'
        entries.append((3, "no reference: a wrong formula that is consistent passes", remedy))
    if subject.scoring is None:
        if not subject.conventions.masks:
            entries.append((2, "it takes no mask: none was tried", "the convention masks"))
        if not subject.gives_weights:
            remedy = 'laws=("pools_values",), or "return_weights" in accepts'
            entries.append((1, "its weights were not looked at, only the output", remedy))
    return entries


def _of_layer(subject: Subject, spec: LayerSpec) -> _Entries:
    entries: _Entries = []
    padding, cache = "padding_mask" in spec.accepts, spec.cache is not None
    if spec.same_as is None and spec.reference is None:
        text = "no reference: a wrong formula that is consistent passes"
        entries.append((2, text, 'reference=, or same_as="..." (a layer with the same outputs)'))
    if padding and cache and "left_padding_is_inert" not in subject.laws:
        entries.append((HEAVY, _PADDED, 'laws=("left_padding_is_inert",)'))
    if padding and cache and "right_padding_is_inert" not in subject.laws:
        text = "prompts padded at the right, then decoded, were not tested"
        entries.append((3, text, 'laws=("right_padding_is_inert",)'))
    if not padding:
        entries.append(
            (1, "it takes no padding_mask: padding was not tested", '"padding_mask" in accepts')
        )
    if not cache:
        entries.append((2, "it has no cache: decoding was not tested", "cache=CacheSpec(new=...)"))
    if not spec.causal:
        text = "it is not causal: later tokens may reach earlier ones"
        entries.append((2, text, "causal=True"))
    return entries


def coverage_of(
    gaps: Iterable[Gap], laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]
) -> tuple[Gap, ...]:
    """The gaps of some subjects and those that only the outcomes show, the heaviest first."""
    outcomes = list(outcomes)
    subjects = {o.subject for o in outcomes if o.invariant == _DECODES and o.status == "failed"}
    untested = [gap for gap in gaps if gap.what != _PADDED or gap.subject not in subjects]
    gaps = [*untested, *_untested_laws(laws, outcomes)]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


def _untested_laws(laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]) -> Iterator[Gap]:
    """The declared laws that ran on no case."""
    for outcome in outcomes:
        is_declared = outcome.invariant in laws.get(outcome.subject, ())
        if is_declared and not outcome.cases and outcome.status in ("skipped", "inconclusive"):
            text = f"the law {outcome.invariant} is declared, but ran on no case"
            yield Gap(outcome.subject, 3, text, outcome.reason)
