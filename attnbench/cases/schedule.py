"""The schedule: cases that random draws rarely find, which every run checks first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle

from attnbench.cases.case import Case
from attnbench.cases.domain import Domain

_SHAPES: tuple[tuple[tuple[int, ...], int, int, int, int, int], ...] = (
    # lead, L, S, Eq, Ek, Ev: shapes that random draws rarely find
    ((2,), 3, 5, 4, 4, 4),
    ((3,), 3, 3, 5, 5, 5),  # L == S == B, so that a mixed-up axis still fits
    ((2, 3), 4, 6, 8, 6, 5),  # heads; all sizes differ
    ((), 4, 7, 3, 3, 2),  # no leading size
    ((1,), 1, 1, 1, 1, 1),  # size 1 everywhere
    ((4,), 1, 9, 8, 8, 8),  # one query: a decoder's step
    ((1, 2), 7, 4, 6, 6, 6),  # more queries than keys
    ((2,), 5, 1, 4, 4, 4),  # one key
    ((2, 2, 2), 2, 3, 4, 4, 3),  # three leading sizes
    ((1,), 15, 17, 16, 16, 16),
    ((1,), 16, 16, 15, 15, 15),
    ((2,), 17, 15, 17, 17, 17),
    ((1,), 33, 32, 8, 8, 33),
    ((1,), 65, 64, 33, 33, 4),
    ((1,), 129, 128, 8, 8, 8),
    ((1,), 257, 256, 4, 4, 4),
    ((3,), 4, 4, 1, 1, 1),
    ((2,), 6, 6, 128, 128, 16),
    ((2,), 3, 5, 257, 257, 4),
)
_MORE = (
    # left out of brief schedules: one key more than whole blocks, for which _LONG has faster rows
    ((1,), 31, 33, 32, 32, 32),
    ((1,), 63, 65, 64, 64, 8),
    ((1,), 127, 129, 16, 16, 16),
    ((1,), 255, 257, 8, 8, 8),
    ((600,), 1, 3, 4, 4, 4),
)
_LONG = (
    # long in one size and otherwise plain, so that no mask or regime hides an error
    Case((1,), 2, 1025),  # one more than some blocks of a power of two
    Case((1,), 257, 2),
    Case((1,), 2, 257, regime="huge"),  # the largest scores of blocks differ widely
    Case((1,), 2, 3, 257, 257),
    Case((1,), 1, 961),  # a late step of a decoder: one more than blocks of 48, 80, 96 or 160
    Case((1,), 960, 2),
    Case((1,), 1, 960),  # only whole blocks of 24, 40, 48, 80, 96 or 160
    Case((1,), 2, 3, value_size=257),
    Case((1,), 130, 258, mask="window"),  # whole blocks of keys are hidden, at both ends
    Case((1,), 130, 130),
    Case((1,), 40, 65, mask="causal"),  # the diagonal cuts through blocks of keys,
    Case((1,), 140, 300, mask="causal"),  # and blocks of queries
    Case((1,), 70, 150, mask="causal", regime="opposed"),  # blocks of which some rows see none
    Case((16,), 2, 257, mask="padding"),  # lengths that need a second byte
    Case((1,), 64, 128, mask="causal_padding"),  # only whole blocks of both, for which no masks are
    Case((1,), 64, 64, mask="boolean"),  # needed to end them
    Case((640,), 1, 3),  # more items than one dimension of a GPU grid; only whole chunks
)
_NARROW = (
    Case((1,), 259, 259, dtype="bfloat16", mask="causal"),  # it cannot represent all positions
    Case((2,), 1, 9, 64, 64, 8, dtype="float16", regime="near_overflow"),  # a decoder's scores
)
"""Cases at the limits of narrow dtypes."""
_FEW_COMBINATIONS = 16
"""Most combinations of variants that any schedule meets."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_FEW_PAIRS = 2_000
"""Most query-key pairs in a shape of a brief schedule, other than the long shapes."""


def schedule(domain: Domain, *, seed: int = 0, brief: bool = False) -> Iterator[Case]:
    """Yield the scheduled cases of a domain, ordered so that a prefix covers as much as possible.

    Every shape has some mask, layout, regime and dtype; long shapes also come plain. Every mask
    comes with two small shapes, every layout and regime with one.

    Args:
        domain: bounds of the cases.
        seed: seed of the first case; each case has the next one.
        brief: leave out the largest shapes and some odd ones; do not repeat masks, layouts and
            regimes of a shape in the domain that has several queries and keys; use only one small
            shape per remaining mask (alternately one with equal sizes), and one of two dtypes per
            long shape.
    """
    seen: set[Case] = set()
    bounds = replace(domain, beyond=(), drawn_len=None)
    bounded = ((case, bounds) for case in _scheduled(domain, brief))
    unbounded = ((replace(case, device=domain.device), domain) for case in domain.beyond)
    for number, (case, limits) in enumerate(chain(bounded, unbounded)):
        case = replace(case, seed=seed + number).legal()
        key = replace(case, seed=0)
        if case in limits and key not in seen:
            seen.add(key)
            yield varied(case, domain.variants, seed + number)


def varied(case: Case, variants: Mapping[str, Sequence[str | int | bool]], number: int) -> Case:
    """Choose one option per variant by a number; consecutive numbers cover all combinations.

    Where there are more of them than a short schedule has cases, it meets them far apart, and thus
    nearly every pair of options. Options that the case already has are kept.
    """
    choices, count = {}, math.prod(map(len, variants.values()))
    if count > _FEW_COMBINATIONS:
        stride = round(count * _GOLDEN)
        while math.gcd(stride, count) > 1:
            stride += 1
        number *= stride
    for name, options in variants.items():
        number, place = divmod(number, len(options))
        choices[name] = options[place]
    return case.tried(**{**choices, **dict(case.variants)})


def _covered(case: Case, domain: Domain) -> set[str]:
    """The mask, regime and layout of which a case shows something."""
    if min(case.q_len, case.kv_len) <= 1 or case.legal() not in domain:
        return set()
    if case.layout == "expanded" and case.lead[0] == 1:  # one item looks like any other
        return {case.mask, case.regime}
    return {case.mask, case.regime, case.layout}


def _scheduled(domain: Domain, brief: bool) -> Iterator[Case]:
    dtypes, masks, device = domain.dtypes, domain.masks, domain.device
    cycles = cycle(dtypes), cycle(masks), cycle(domain.layouts), cycle(domain.regimes)
    rows = _SHAPES if brief else (*_SHAPES, *_MORE)
    covered: set[str] = set()
    for sizes, dtype, mask, layout, regime in zip(rows, *cycles, strict=False):
        case = Case(*sizes, dtype, device, mask, layout, regime)
        if brief and case.q_len * case.kv_len > _FEW_PAIRS:
            continue
        if brief:
            covered |= _covered(case, domain)
        yield case
    ends = list(dict.fromkeys((dtypes[0], dtypes[-1])))
    for number, case in enumerate(_LONG):
        for dtype in ends[number % len(ends) :][:1] if brief else ends:
            yield replace(case, dtype=dtype, device=device)
    yield from (replace(case, device=device) for case in _NARROW)
    bases = Case((2, 3), 4, 6, 8, 6, 5, device=device), Case((3,), 3, 3, 5, 5, 5, device=device)
    for number, mask in enumerate(mask for mask in masks if mask not in covered):
        shapes = bases[number % 2 :][:1] if brief else bases
        for place, base in enumerate(shapes, number):
            yield replace(base, mask=mask, dtype=dtypes[place % len(dtypes)])
    for number, (layout, regime) in enumerate(
        [(layout, "normal") for layout in domain.layouts if layout not in covered]
        + [("contiguous", regime) for regime in domain.regimes if regime not in covered]
    ):
        dtype = dtypes[number % len(dtypes)]
        yield replace(bases[0], layout=layout, regime=regime, dtype=dtype)
    # a bias counts to its last place, which the scores of other regimes hide
    yield replace(bases[1], mask="bias", dtype=dtypes[0])
    yield from _out_of_step(domain, bases[1])


def _out_of_step(domain: Domain, base: Case) -> Iterator[Case]:
    """The first regime in all dtypes: where the cycles fall into step, it has met only some."""
    if math.gcd(len(domain.dtypes), len(domain.regimes)) > 1:
        for number, dtype in enumerate(domain.dtypes[1:]):
            mask = domain.masks[number % len(domain.masks)]
            yield replace(base, dtype=dtype, mask=mask, regime=domain.regimes[0])
