"""Cases: the points at which a subject is looked at, and the schedule of those chance would miss.

A case is plain data, so that it can be drawn by Hypothesis, listed by a benchmark, printed in a
counterexample and read back from its id. :mod:`attnbench.subject.tensors` makes tensors of it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from attnbench.errors import UsageError
from attnbench.specs import DTYPES, Sizes

__all__ = ["LAYOUTS", "MASKS", "REGIMES", "Case", "Domain", "schedule"]

MASKS = {
    "none": "no mask",
    "boolean": "boolean (..., L, S)",
    "boolean_shared": "boolean (L, S), one for all items",
    "key_row": "boolean (1, S), one row for all queries",
    "key_padding": "boolean (B, 1, ..., 1, S), as padding masks are often given",
    "bias": "floating (..., L, S), finite",
    "floating": "floating (..., L, S), with -inf",
    "padding": "valid lengths (B,)",
    "lengths_2d": "valid lengths (B, L)",
    "causal": "causal, bottom right",
    "causal_padding": "causal together with valid lengths (B,)",
    "window": "boolean (L, S), a window around the diagonal",
    "empty_row": "boolean (..., L, S), with a query that has no key left",
}
"""Kinds of mask. In all but ``empty_row`` every query has a key left."""

LAYOUTS = {
    "contiguous": "contiguous",
    "transposed": "the last two dimensions stored the other way round",
    "heads": "the last leading dimension stored after the sequence, as a head split leaves it",
    "strided": "every second element of a larger tensor",
    "offset": "a slice that starts inside a larger tensor",
    "expanded": "one item expanded over the first leading dimension, with stride 0",
}
"""Memory layouts of query, key and value."""

REGIMES = {
    "normal": "independent standard normal",
    "huge": "normal times 32, so that softmax saturates",
    "tiny": "normal times 1/1024",
    "equal_keys": "all keys of an item are the same",
    "zero_keys": "all keys are zero",
    "near_overflow": "q·k exceeds the largest float16, q·k / √E does not",
    "far": "normal, far from the origin (1024; 32 in half types)",
}
"""Regimes of values."""


@dataclass(frozen=True)
class Case:
    """One point at which a subject is looked at.

    Args:
        lead: leading sizes (batch, heads), may be ``()``.
        q_len, kv_len: L and S.
        query_size, key_size, value_size: Eq, Ek and Ev.
        dtype: name of a torch dtype.
        device: name of a torch device.
        mask: a key of :data:`MASKS` (in a call of ``attend``: none, boolean, floating or causal).
        layout: a key of :data:`LAYOUTS`.
        regime: a key of :data:`REGIMES`.
        seed: of the parameters and of all tensors.
    """

    lead: tuple[int, ...] = (2,)
    q_len: int = 3
    kv_len: int = 5
    query_size: int = 4
    key_size: int = 4
    value_size: int = 4
    dtype: str = "float32"
    device: str = "cpu"
    mask: str = "none"
    layout: str = "contiguous"
    regime: str = "normal"
    seed: int = 0

    @property
    def id(self) -> str:
        """A stable text that names the case, and can be read back by :meth:`from_id`."""
        lead = "x".join(map(str, self.lead)) or "0d"
        return (
            f"b{lead}-L{self.q_len}-S{self.kv_len}-Eq{self.query_size}-Ek{self.key_size}"
            f"-Ev{self.value_size}-{self.dtype}-{self.device}-{self.mask}-{self.layout}"
            f"-{self.regime}-s{self.seed}"
        )

    @classmethod
    def from_id(cls, text: str) -> Case:
        """The case of an id.

        Raises:
            UsageError: it is not one.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not the id of a case; one is {Case().id}.")
        values: dict[str, Any] = dict(zip(cls.__dataclass_fields__, match.groups(), strict=True))
        lead = values["lead"]
        values["lead"] = () if lead == "0d" else tuple(int(size) for size in lead.split("x"))
        for name in ("q_len", "kv_len", "query_size", "key_size", "value_size", "seed"):
            values[name] = int(values[name])
        return cls(**values)

    @property
    def sizes(self) -> Sizes:
        """The sizes alone."""
        return Sizes(**{f.name: getattr(self, f.name) for f in fields(Sizes)})

    def with_sizes(self, sizes: Sizes) -> Case:
        """The same case with other sizes."""
        if sizes == self.sizes:
            return self
        return replace(self, **{f.name: getattr(sizes, f.name) for f in fields(Sizes)})

    def replace(self, **changes: Any) -> Case:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def legal(self) -> Case:
        """The nearest case whose mask and layout fit its sizes."""
        mask, layout = self.mask, self.layout
        if mask in ("padding", "lengths_2d", "key_padding", "causal_padding") and not self.lead:
            mask = "causal" if mask == "causal_padding" else "key_row"
        if mask in ("causal", "causal_padding") and self.q_len > self.kv_len:
            mask = "boolean"  # rows without keys belong to empty_row
        if layout in ("heads", "expanded") and not self.lead:
            layout = "contiguous"
        if (mask, layout) == (self.mask, self.layout):
            return self
        return replace(self, mask=mask, layout=layout)


_ID = re.compile(
    r"b(0d|\d+(?:x\d+)*)-L(\d+)-S(\d+)-Eq(\d+)-Ek(\d+)-Ev(\d+)"
    r"-(\w+)-([\w:]+)-(\w+)-(\w+)-(\w+)-s(\d+)"
)


@dataclass(frozen=True)
class Domain:
    """The cases at which an invariant can say something.

    Args:
        dtypes, masks, layouts, regimes: the names that it may have.
        leads: how many leading dimensions.
        max_len: the largest L and S that is drawn; the schedule's larger ones are left out too.
        beyond: scheduled cases that may be longer, or have more features; they come as they are,
            where mask and dtype fit.
        max_features: the same for Eq, Ek and Ev.
        min_kv_len: the smallest S.
        min_q_len: the smallest L.
        devices: of the run.
    """

    dtypes: tuple[str, ...] = DTYPES
    masks: tuple[str, ...] = tuple(MASKS)
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    regimes: tuple[str, ...] = tuple(REGIMES)
    leads: tuple[int, ...] = (0, 1, 2, 3)
    max_len: int = 2048
    max_features: int = 1024
    min_q_len: int = 1
    min_kv_len: int = 1
    devices: tuple[str, ...] = ("cpu",)
    beyond: tuple[Case, ...] = ()

    @functools.cached_property
    def _longest(self) -> int:
        return max([self.max_len, *(max(case.q_len, case.kv_len) for case in self.beyond)])

    @functools.cached_property
    def _widest(self) -> int:
        return max([self.max_features, *(_features(case) for case in self.beyond)])

    def __contains__(self, case: object) -> bool:
        return (
            isinstance(case, Case)
            and case.dtype in self.dtypes
            and case.mask in self.masks
            and case.layout in self.layouts
            and case.regime in self.regimes
            and len(case.lead) in self.leads
            and self.min_q_len <= case.q_len <= self._longest
            and self.min_kv_len <= case.kv_len <= self._longest
            and _features(case) <= self._widest
            and case.device in self.devices
        )


def _features(case: Case) -> int:
    return max(case.query_size, case.key_size, case.value_size)


_SHAPES: tuple[tuple[tuple[int, ...], int, int, int, int, int], ...] = (
    # lead, L, S, Eq, Ek, Ev: each row is a shape that chance does not find
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
_ODD = (
    # one key more than whole blocks, for which _LONG has rows that are faster
    ((1,), 31, 33, 32, 32, 32),
    ((1,), 63, 65, 64, 64, 8),
    ((1,), 127, 129, 16, 16, 16),
    ((1,), 255, 257, 8, 8, 8),
)


_LONG = (
    # long in one size, and else so plain that no mask and no regime hides what is wrong with it
    Case((1,), 2, 1025),  # one more than some blocks of a power of two
    Case((1,), 257, 2),
    Case((1,), 2, 257, regime="huge"),  # where one block's largest score is far above the last's
    Case((1,), 2, 3, 257, 257),
    Case((1,), 1, 961),  # a decoder's step after many: one more than blocks of 48, 80, 96 or 160
    Case((1,), 960, 2),
    Case((1,), 1, 960),  # nothing but whole blocks of 24, 40, 48, 80, 96 or 160
    Case((1,), 2, 3, value_size=257),
    Case((1,), 130, 258, mask="window"),  # whole blocks of keys are hidden, first ones and last
    Case((1,), 130, 130),
    Case((1,), 40, 65, mask="causal"),  # the diagonal meets blocks of keys in their midst,
    Case((1,), 140, 300, mask="causal"),  # and blocks of queries
    Case((600,), 1, 3),  # more items than a grid has in one direction
    Case((16,), 2, 257, mask="padding"),  # so many lengths that one needs a second byte
    Case((640,), 1, 3),  # nothing but whole chunks of items
)
_NARROW = (
    Case((1,), 259, 259, dtype="bfloat16", mask="causal"),  # positions that it cannot tell apart
    Case((2,), 1, 9, 64, 64, 8, dtype="float16", regime="near_overflow"),  # a decoder's scores
)
"""Where a narrow dtype has its limits."""


def schedule(domain: Domain, *, seed: int = 0, brief: bool = False) -> Iterator[Case]:
    """Cases that chance does not find, in an order in which a prefix covers most.

    Every shape meets a mask, a layout, a regime and a dtype; long ones come plain too. Every mask
    comes on two small shapes, and every layout and regime on one. Only cases of the domain come.

    Args:
        domain: bounds of the cases.
        seed: of the first case; each has the next one.
        brief: without the shapes of one key more than whole blocks; every mask on one of the small
            shapes only, every second one where all sizes agree; what is long in one of two dtypes.
    """
    seen: set[Case] = set()
    bounds = replace(domain, beyond=())
    usual = ((case, bounds) for case in _scheduled(domain, brief))
    longer = ((replace(case, device=domain.devices[0]), domain) for case in domain.beyond)
    for number, (case, within) in enumerate(itertools.chain(usual, longer)):
        case = replace(case, seed=seed + number).legal()
        key = replace(case, seed=0)
        if case in within and key not in seen:
            seen.add(key)
            yield case


def _scheduled(domain: Domain, brief: bool) -> Iterator[Case]:
    dtypes, masks = domain.dtypes, domain.masks
    device = domain.devices[0]
    cycles = (
        itertools.cycle(dtypes),
        itertools.cycle(masks),
        itertools.cycle(domain.layouts),
        itertools.cycle(domain.regimes),
    )
    rows = _SHAPES if brief else (*_SHAPES, *_ODD)
    for sizes, dtype, mask, layout, regime in zip(rows, *cycles, strict=False):
        yield Case(*sizes, dtype, device, mask, layout, regime)
    ends = list(dict.fromkeys((dtypes[0], dtypes[-1])))
    for number, case in enumerate(_LONG):
        for dtype in ends[number % len(ends) :][:1] if brief else ends:
            yield replace(case, dtype=dtype, device=device)
    for case in _NARROW:
        yield replace(case, device=device)
    small = Case((2, 3), 4, 6, 8, 6, 5, device=device), Case((3,), 3, 3, 5, 5, 5, device=device)
    for number, mask in enumerate(masks):
        shapes = small[number % 2 :][:1] if brief else small
        for base, dtype in zip(shapes, _rotated(dtypes, number), strict=False):
            yield replace(base, mask=mask, dtype=dtype)
    for number, (layout, regime) in enumerate(
        [(layout, "normal") for layout in domain.layouts]
        + [("contiguous", regime) for regime in domain.regimes]
    ):
        dtype = dtypes[number % len(dtypes)]
        yield replace(small[0], layout=layout, regime=regime, dtype=dtype)


def _rotated(dtypes: tuple[str, ...], number: int) -> Iterator[str]:
    return itertools.islice(itertools.cycle(dtypes), number, None)
