"""Which cases are smaller than a failing one: the candidates for a smallest counterexample."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case

__all__ = ["size", "smaller"]

_ORDER = {name: i for i, name in enumerate([*MASKS, *LAYOUTS, *REGIMES])}
_DTYPE_ORDER = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}


def size(case: Case) -> tuple[int, ...]:
    """How large a case is, in the order in which one is told from another."""
    sizes = case.sizes
    return (
        len(case.lead),
        sum(case.lead) + sizes.q_len + sizes.kv_len,
        sizes.query_size + sizes.key_size + sizes.value_size,
        _ORDER.get(case.regime, 0) + _ORDER.get(case.layout, 0) + _ORDER.get(case.mask, 0),
        _DTYPE_ORDER.get(case.dtype, 0),
        case.seed,
    )


def smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller in one field, the boldest first; they may not be legal."""
    if case.lead:
        yield replace(case, lead=())
        yield replace(case, lead=case.lead[:1])
        for axis, own in enumerate(case.lead):
            for less in sorted({1, 2, own - 1} - {0}):
                if less < own:
                    yield replace(case, lead=(*case.lead[:axis], less, *case.lead[axis + 1 :]))
    changes: dict[str, Any]
    for name in ("q_len", "kv_len", "query_size", "key_size", "value_size"):
        own = getattr(case, name)
        for less in sorted({1, 2, 3, own // 2, own - 1}):
            if 0 < less < own:
                yield replace(case, **{name: less})
    for name, values in (("regime", REGIMES), ("layout", LAYOUTS), ("mask", MASKS)):
        for value in itertools.takewhile(getattr(case, name).__ne__, values):
            changes = {name: value}
            yield replace(case, **changes)
    for dtype in ("float32", "float64"):
        if dtype != case.dtype:
            yield replace(case, dtype=dtype)
    for seed in range(min(3, case.seed)):
        yield replace(case, seed=seed)
