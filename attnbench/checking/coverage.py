"""What a check did not look at, by weight, and the declaration that would change it."""

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
"""What tests it all the same, where calls without a cache promise it."""


@dataclass(frozen=True)
class Gap:
    """Something that was not looked at.

    Args:
        subject: name of the subject.
        weight: from 1, what hardly hides a bug, to 4, where a usual one passes.
        what: what was not looked at, and what passes therefore.
        remedy: the declaration in the spec, or the word, that would change it.
    """

    subject: str
    weight: int
    what: str
    remedy: str


def gaps_of(subject: Subject) -> tuple[Gap, ...]:
    """What no check of a subject looks at, by what its spec declares; the heaviest first."""
    spec = subject.spec
    found = _of_layer(subject, spec) if isinstance(spec, LayerSpec) else _of_call(subject)
    if not subject.conventions.gradients:
        found = [*found, (2, "gradients were not looked at", "the convention gradients=True")]
    gaps = [Gap(subject.name, weight, what, remedy) for weight, what, remedy in found]
    return tuple(sorted(gaps, key=lambda gap: -gap.weight))


_Found = list[tuple[int, str, str]]


def _of_call(subject: Subject) -> _Found:
    """The gaps of a scoring function, a kernel or a mechanism."""
    found: _Found = []
    if subject.maker.reference is None and getattr(subject.maker, "same_as", None) is None:
        declared = "reference=lambda module, q, k: ... (the score of one query and one key)"
        if subject.scoring is None:
            declared = 'reference=, or same_as="scaled_dot" or what else it should equal'
        found.append((3, "no reference: a wrong formula that is consistent passes", declared))
    if subject.scoring is None:
        if not subject.conventions.masks:
            found.append((2, "it takes no mask: none was tried", "the convention masks"))
        if not subject.gives_weights:
            declared = 'laws=("pools_values",), or "return_weights" in accepts'
            found.append((1, "its weights were not looked at, only the output", declared))
    return found


def _of_layer(subject: Subject, spec: LayerSpec) -> _Found:
    found: _Found = []
    padded, cached = "padding_mask" in spec.accepts, spec.cache is not None
    if spec.same_as is None and spec.reference is None:
        text = "no reference: a wrong formula that is consistent passes"
        found.append((2, text, 'reference=, or same_as="..." (a layer with the same outputs)'))
    if padded and cached and "left_padding_is_inert" not in subject.laws:
        found.append((HEAVY, _PADDED, 'laws=("left_padding_is_inert",)'))
    if padded and cached and "right_padding_is_inert" not in subject.laws:
        text = "prompts padded at the right, then decoded, were not tested"
        found.append((3, text, 'laws=("right_padding_is_inert",)'))
    if not padded:
        found.append((1, "it takes no padding_mask: padding was not tested", "accepts"))
    if not cached:
        found.append((2, "it has no cache: decoding was not tested", "cache=CacheSpec(new=...)"))
    if not spec.causal:
        text = "it is not causal: later tokens may reach earlier ones"
        found.append((2, text, "causal=True"))
    return found


def coverage_of(
    gaps: Iterable[Gap], laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]
) -> tuple[Gap, ...]:
    """The gaps of some subjects, with those that only the outcomes show; the heaviest first."""
    outcomes = list(outcomes)
    tested = {o.subject for o in outcomes if o.invariant == _DECODES and o.status == "failed"}
    seen = [gap for gap in gaps if gap.what != _PADDED or gap.subject not in tested]
    found = [*seen, *_unmet(laws, outcomes)]
    return tuple(sorted(found, key=lambda gap: -gap.weight))


def _unmet(laws: Mapping[str, Sequence[str]], outcomes: Iterable[Outcome]) -> Iterator[Gap]:
    """The declared laws that ran on no case."""
    for outcome in outcomes:
        declared = outcome.invariant in laws.get(outcome.subject, ())
        if declared and not outcome.cases and outcome.status in ("skipped", "inconclusive"):
            text = f"the law {outcome.invariant} is declared, but ran on no case"
            yield Gap(outcome.subject, 3, text, outcome.reason)
