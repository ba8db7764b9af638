"""The rows of what is installed, as ``attnbench list`` shows them.

Commands call these functions in child processes, where torch and the plugins are imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from attnbench.cases.case import Case
from attnbench.registry.address import Address
from attnbench.specs import LayerSpec


def subject_rows(
    targets: Sequence[Address] | None, case_id: str | None = None, size: int | None = None
) -> list[dict[str, Any]]:
    """Rows for the subjects of some addresses, or all installed ones, as in ``attnbench list``.

    Args:
        targets: addresses; ``None`` for all.
        case_id: case for which kernels are asked for support; ``None`` to ask none.
        size: an E; the row of a layer gets the nearest legal one.
    """
    from attnbench.subject.lookup import installed, resolve

    subjects = installed() if targets is None else [s for t in targets for s in resolve(t)]
    rows = []
    for subject in subjects:
        maker = subject.maker
        rows.append(
            {
                "subject": subject.name,
                "target": subject.address,
                "kind": subject.kind,
                "formula": maker.formula,
                "source": maker.source,
                "laws": list(maker.laws),
                "dtypes": list(subject.dtypes),
                "equal_sizes": getattr(maker, "equal_sizes", False),
                "layer": _layer(subject, size),
                "exempt": dict(subject.exempt),
                "kernels": _kernels(subject, case_id) if case_id else [],
            }
        )
    return rows


def _layer(subject: Any, size: int | None) -> dict[str, Any] | None:
    """The fields of a layer's spec on calls and caches; ``None`` for other subjects."""
    maker = subject.maker
    if not isinstance(maker, LayerSpec):
        return None
    cache, sizes = maker.cache, {}
    if size is not None:
        sizes["size"] = size
        with contextlib.suppress(Exception):  # if sizes raises, so does the measurement
            sizes["size"] = subject.legal(Case(query_size=size)).query_size
    return {
        **sizes,
        "causal": maker.causal,
        "window": maker.window,
        "accepts": list(maker.accepts),
        "cache": None
        if cache is None
        else {
            "operations": [n for n in ("select", "crop", "length") if getattr(cache, n)],
            "capacity": cache.capacity,
        },
    }


def invariant_rows() -> list[dict[str, Any]]:
    """Rows for all invariants and laws, as in ``attnbench list --invariants``."""
    from attnbench.checking.plan import select_invariants

    return [
        {
            "invariant": invariant.name,
            "kind": "law" if invariant.law else "invariant",
            "statement": invariant.statement,
        }
        for invariant in select_invariants(None)
    ]


def _kernels(subject: Any, case_id: str) -> list[dict[str, Any]]:
    """The kernels of a scoring function in the order of ``kernel="auto"``, with their refusals."""
    from attnbench.attention.dispatch import choices

    if subject.kind != "scoring":
        return []
    case = subject.legal(Case.from_id(case_id))
    return [
        {
            "kernel": choice.kernel.name,
            "priority": choice.kernel.priority,
            "reason": choice.reason,
            "runs_as": choice.kernel.runs_as() if choice.kernel.runs_as else "",
        }
        for choice in choices(subject.spec, case)
    ]
