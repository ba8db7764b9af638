"""The properties of caches: for each its invariant, its operations, and scheduled programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.testing import LayerSubject
from attnbench_plugins.properties.caches.program import Program, Step, steps
from attnbench_plugins.properties.layer_faults import holds_left_padding


@dataclass(frozen=True)
class Property:
    """A property of caches.

    Args:
        invariant: name of the invariant that reports it.
        operations: kinds of step in its programs besides ``begin`` and ``append``; ``pads`` for
            sequences that begin with padding.
        programs: ``programs(subject, w)`` gives programs that run first, around a window w.
    """

    invariant: str
    operations: tuple[str, ...]
    programs: Callable[[LayerSubject, int], Sequence[Program]]

    def scheduled(self, subject: LayerSubject) -> Sequence[Program]:
        """The programs that run first; without a declared window, a cache may have a small one."""
        return self.programs(subject, subject.width or 4)


def operations(subject: LayerSubject, judged: str) -> tuple[str, ...]:
    """The operations of a property that a layer supports."""
    cache, lacking = subject.spec.cache, set[str]()
    if judged == "mixed":
        lacking = {name for name in ("select", "crop") if getattr(cache, name) is None}
    if not holds_left_padding(subject):
        lacking.add("pads")
    return tuple(name for name in PROPERTIES[judged].operations if name not in lacking)


def _cuts(subject: LayerSubject, w: int) -> list[Program]:
    once = [1] * (2 * w + 2)
    return [
        steps(2, 3, 1, 1, 2),
        steps(2, *once),
        steps(3, 5, 5, 5, 5),
        steps(1, 12, *[1] * 7),
        steps(2, w, w, w, 1),
        steps(2, w - 1 or 1, 1, 1, 1, w + 1),
        steps(1, w + 1, 1, 1),
        steps(2, 2 * w + 1, 1, 2, 1),
        steps(1, *[2] * (w + 2)),
        steps(2, 1, w + 2, 1),
        steps(1, 17, 1, 5, 1),
        steps(1, 2, 1, 1),
        steps(3, 9, 6, 6, 1, 1),
        steps(2, subject.capacity - 1, 1),
    ]


def _with_calls_between(subject: LayerSubject, w: int) -> list[Program]:
    between = Step("without", count=5)
    return [
        steps(2, 3, between, 1, 1),
        steps(2, 4, 1, between, 2, Step("without", count=1), 1),
        steps(1, w + 2, between, 1, between, 3),
        steps(2, between, 5, Step("without", count=2)),
    ]


def _selections(subject: LayerSubject, w: int) -> list[Program]:
    unequal = [
        steps(2, 4, (1, 0), 1, 2, pads=(2, 0)),
        steps(3, 5, (2, 2, 0), 2, 1, pads=(0, 3, 1)),
        steps(3, 6, (1,), 1, 1, pads=(0, 2, 4)),
    ]
    return [
        *(unequal if holds_left_padding(subject) else ()),
        steps(3, 4, (2, 0, 1), 1, 1),
        steps(2, 3, (1, 1, 0), 1, 2),
        steps(3, 9, (1,), 1, 1),
        steps(2, (1, 0, 1), 3, 1),
        steps(3, w + 2, (2, 0), 1, 1, (1, 0, 0), 1, w),
        steps(3, 5, 1, (0, 2), 1, 1),
        steps(2, 2, (0, 0, 1, 1), 1, 1, (3, 0), 1),
        steps(2, 3, (1, 0, 0, 1), 1, (2, 0), 2),
        steps(3, 12, (2, 1, 0), 6, 1),
        steps(1, 6, (0, 0), 1, 2),
    ]


def _drafts(rows: int, w: int) -> Program:
    """One token is kept and another taken back, at every place of a ring of up to 3w slots."""
    kept = range(w + 1, 3 * w + 2)
    return steps(rows, w, *(part for length in kept for part in (1, 1, -length)), 1, 1)


def _crops(subject: LayerSubject, w: int) -> list[Program]:
    return [
        _drafts(2, w),
        steps(2, *[1] * (3 * w), -(3 * w - 2), 2, 1),
        steps(2, 6, -4, 1, 2),
        steps(2, 5, "0", 3, 1),
        steps(1, 3, 1, 1, -3, 1, 1),
        steps(2, 9, 3, -5, 4, -6, 1, 1),
        steps(2, 4, -4, 1, 1),
        steps(1, w + 3, -w, 1, 1),
        steps(2, w, 1, 1, -w, 2, 1),
        steps(1, w - 1 or 1, 1, -1, 3, 1),
        steps(1, 12, -11, 1, 1),
        steps(2, "0", 3, 1),
        steps(2, w + 4, -(w + 3), 1, 1),
    ]


def _second(count: int) -> Step:
    return Step("append", 1, count)


def _lockstep(subject: LayerSubject, w: int) -> list[Program]:
    other, fork = Step("begin", count=2), Step("fork")
    padded = steps(
        2, Step("begin", count=2, rows=(0, 3)), 4, _second(5), 1, _second(1), 2, pads=(2, 0)
    )
    return [
        *([padded] if holds_left_padding(subject) else ()),
        steps(2, other, 3, _second(3), 1, _second(1), 1, _second(2)),
        steps(2, 3, fork, _second(2), 1, _second(1)),
        steps(2, 4, other, _second(2), 1, 1, _second(1)),
        steps(1, w + 1, fork, 2, _second(1), 1, _second(w)),
        steps(1, Step("begin", count=3), 5, _second(1), 1, _second(4), 1),
        steps(2, 1, fork, Step("fork", 1), 1, _second(1), Step("append", 2, 3), 1),
    ]


def _lengths(subject: LayerSubject, w: int) -> list[Program]:
    return [
        steps(2, 3, 1, 5),
        steps(3, 4, (2, 0), 1, -2, 3),
        steps(2, w + 2, 1, (0,), 1),
        steps(1, "0", 2, -1, 4),
        steps(2, (1, 0), 3),
    ]


def _padded(subject: LayerSubject, w: int) -> list[Program]:
    return [
        steps(2, 5, 1, 1, pads=(3, 0)),
        steps(3, 5, 1, 1, 2, pads=(0, 4, 5)),
        steps(2, 2 * w, 1, 1, w, pads=(0, 2 * w - 2)),
        steps(1, 4, 1, 1, pads=(2,)),
        steps(3, 3, 3, 1, 1, pads=(1, 2, 0)),
        steps(2, 6, 6, 1, pads=(5, 1)),
        steps(2, *[1] * (w + 4), pads=(2, 0)),
        steps(2, subject.capacity - 1, 1, pads=(2, 0)),
    ]


def _mixtures(subject: LayerSubject, w: int) -> list[Program]:
    fork, between = Step("fork"), Step("without", count=3)
    return [
        steps(3, 6, (2, 0), -4, 1, between, 2, pads=(0, 3, 1)),
        steps(2, 5, -3, (1, 0, 1), 2, 1),
        steps(2, 4, fork, (1, 0), 1, _second(2), -2, 3, _second(1)),
        steps(2, w + 1, Step("begin", count=3), _second(2), (1,), 1, _second(1), between, w),
        steps(3, 2, fork, Step("select", 1, rows=(2, 1, 0)), _second(1), 1, Step("crop", 1, 1), 3),
        steps(2, 3, "0", (1, 1, 0), 4, fork, -2, _second(1), 1),
        steps(1, w - 1 or 1, (0, 0), 1, between, -2, 1, w + 2, 1),
        steps(2, *[1] * (2 * w + 2), -(2 * w + 1), (1, 1, 0), 1, -(2 * w + 1), fork, 2, _second(1)),
    ]


def _ragged(subject: LayerSubject, w: int) -> list[Program]:
    def of(*counts: int) -> Step:
        return Step("append", count=max(counts), rows=counts)

    return [
        steps(2, of(3, 5), 1, 1),
        steps(3, of(4, 1, 2), of(1, 2, 0), 1, 2),
        steps(1, Step("append", count=4, rows=(2,)), 1, 1),
        steps(2, of(2 * w, 1), of(1, 3), 1),
        steps(2, 3, of(1, 0), of(0, 1), of(2, 1), 1),
    ]


PROPERTIES: Mapping[str, Property] = {
    "split": Property("calls_may_be_cut_anywhere", (), _cuts),
    "rows": Property("selected_rows_go_on_as_their_sequences", ("select", "pads"), _selections),
    "rollback": Property("cropped_slots_are_forgotten", ("crop",), _crops),
    "owner": Property("caches_are_independent", ("fork", "pads"), _lockstep),
    "fresh": Property("calls_without_cache_leave_none", ("without",), _with_calls_between),
    "alone": Property("padded_rows_decode_as_alone", ("pads",), _padded),
    "ragged": Property("right_padding_is_inert", ("ragged",), _ragged),
    "ledger": Property("cache_length_counts_slots", ("select", "crop"), _lengths),
    "mixed": Property(
        "cache_operations_combine",
        ("without", "crop", "select", "fork", "pads"),
        _mixtures,
    ),
}
"""The properties by name."""
