"""Domains: the cases at which an invariant applies."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.sizes import DTYPES


@dataclass(frozen=True)
class Domain:
    """The cases at which an invariant applies.

    Args:
        dtypes, masks, layouts, regimes: allowed names.
        leads: allowed numbers of leading dimensions.
        max_len: largest scheduled L and S, and largest drawn ones unless ``drawn_len`` is larger.
        beyond: scheduled cases that may exceed ``max_len`` and ``max_features``; used unchanged if
            their mask and dtype are allowed.
        max_features: largest Eq, Ek and Ev.
        min_kv_len: smallest S.
        min_q_len: smallest L.
        device: device of the run.
        drawn_len: largest L and S that the profile thorough draws; by default 64 or ``max_len``.
        variants: variants of the property, names to options; a case has one option of each.
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
    device: str = "cpu"
    beyond: tuple[Case, ...] = ()
    drawn_len: int | None = None
    variants: Mapping[str, Sequence[str | int | bool]] = field(default_factory=dict)

    @property
    def longest_drawn(self) -> int:
        """The largest L and S of drawn cases."""
        return self.drawn_len or min(self.max_len, 64)

    @functools.cached_property
    def longest(self) -> int:
        """The largest L and S of all cases."""
        beyond = (max(case.q_len, case.kv_len) for case in self.beyond)
        return max(self.max_len, self.longest_drawn, *beyond)

    @functools.cached_property
    def widest(self) -> int:
        """The largest Eq, Ek and Ev of all cases."""
        return max([self.max_features, *(case.width for case in self.beyond)])

    def __contains__(self, case: object) -> bool:
        return (
            isinstance(case, Case)
            and case.dtype in self.dtypes
            and case.mask in self.masks
            and case.layout in self.layouts
            and case.regime in self.regimes
            and len(case.lead) in self.leads
            and self.min_q_len <= case.q_len <= self.longest
            and self.min_kv_len <= case.kv_len <= self.longest
            and case.width <= self.widest
            and case.device == self.device
        )
