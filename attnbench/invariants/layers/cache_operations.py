"""Invariants on what is done with a cache: rows selected, slots cropped, copies, other caches."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.hookspecs import hookimpl
from attnbench.invariants.layers.cache_checks import cache_invariant, has_cache, near_window
from attnbench.invariants.layers.cache_programs import Program, Step, steps
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject

__all__: list[str] = []


def _unequal_rows(subject: LayerSubject) -> list[Program]:
    """Selections of padded rows, where a layer promises something of them."""
    if not {"left_padding_is_inert", "padding_mask"} <= {*subject.laws, *subject.accepts}:
        return []
    return [
        steps(2, 4, (1, 0), 1, 2, pads=(2, 0)),
        steps(3, 5, (2, 2, 0), 2, 1, pads=(0, 3, 1)),
        steps(3, 6, (1,), 1, 1, pads=(0, 2, 4)),
    ]


def _selections(subject: LayerSubject) -> list[Program]:
    w = near_window(subject)
    return [
        *_unequal_rows(subject),
        steps(3, 4, (2, 0, 1), 1, 1),
        steps(2, 3, (1, 1, 0), 1, 2),
        steps(3, 9, (1,), 1, 1),
        steps(2, (1, 0, 1), 3, 1),
        steps(3, w + 2, (2, 0), 1, 1, (1, 0, 0), 1, w),
        steps(3, 5, 1, (0, 2), 1, 1),
        steps(2, 2, (0, 0, 1, 1), 1, 1, (3, 0), 1),
        steps(3, 12, (2, 1, 0), 6, 1),
        steps(1, 6, (0, 0), 1, 2),
    ]


def _crops(subject: LayerSubject) -> list[Program]:
    w = near_window(subject)
    return [
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


def _lockstep(subject: LayerSubject) -> list[Program]:
    w = near_window(subject)
    other, fork = Step("begin", count=2), Step("fork")

    def second(count: int) -> Step:
        return Step("append", 1, count)

    return [
        steps(2, other, 3, second(3), 1, second(1), 1, second(2)),
        steps(2, 3, fork, second(2), 1, second(1)),
        steps(2, 4, other, second(2), 1, 1, second(1)),
        steps(1, w + 1, fork, 2, second(1), 1, second(w)),
        steps(1, Step("begin", count=3), 5, second(1), 1, second(4), 1),
        steps(2, 1, fork, Step("fork", 1), 1, second(1), Step("append", 2, 3), 1),
    ]


def _lengths(subject: LayerSubject) -> list[Program]:
    w = near_window(subject)
    return [
        steps(2, 3, 1, 5),
        steps(3, 4, (2, 0), 1, -2, 3),
        steps(2, w + 2, 1, (0,), 1),
        steps(1, "0", 2, -1, 4),
        steps(2, (1, 0), 3),
    ]


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on the operations of a cache."""
    yield cache_invariant(
        "selected_rows_go_on_as_their_sequences",
        "Selecting rows of a cache, in any order and with repeats, equals selecting the sequences.",
        "rows",
        _selections,
        lambda subject: has_cache(subject, "select"),
    )
    yield cache_invariant(
        "cropped_slots_are_forgotten",
        "Cropping a cache and going on equals never having gone further; a crop that is refused "
        "leaves the cache as it was.",
        "rollback",
        _crops,
        lambda subject: has_cache(subject, "crop"),
    )
    yield cache_invariant(
        "caches_are_independent",
        "Two caches of one module, and a cache and its deepcopy, do not affect each other.",
        "owner",
        _lockstep,
        has_cache,
    )
    yield cache_invariant(
        "cache_length_counts_slots",
        "The length of a cache is the number of slots appended and not cropped.",
        "ledger",
        _lengths,
        lambda subject: has_cache(subject, "length"),
    )
