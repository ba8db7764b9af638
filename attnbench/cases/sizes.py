"""The sizes of an attention, and the dtypes in which it may be called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Names of the floating dtypes that a subject may support, most precise first."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of one attention: ``(*lead, q_len, query_size)`` and so on.

    ``spec.sizes`` maps them to legal ones; :meth:`replace` changes some of them.
    """

    lead: tuple[int, ...]
    q_len: int
    kv_len: int
    query_size: int
    key_size: int
    value_size: int

    def replace(self, **changes: Any) -> Sizes:
        """A copy with some sizes changed."""
        return replace(self, **changes)
