"""Domains: which cases an invariant can say something of."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.specs import DTYPES

__all__ = ["Domain", "Taker"]


class Taker(Protocol):
    """What a space of cases asks of a subject."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes that it supports."""

    def legal(self, case: Case) -> Case:
        """The nearest case that is legal for it."""

    def takes_mask(self, kind: str) -> bool:
        """Whether it runs some case of a kind of mask."""


@dataclass(frozen=True)
class Domain:
    """The cases at which an invariant can say something.

    Args:
        dtypes, masks, layouts, regimes: the names that it may have.
        leads: how many leading dimensions.
        max_len: the largest scheduled L and S, and the largest that is drawn unless ``drawn_len``
            says more.
        beyond: scheduled cases that may be longer, or have more features; they come as they are,
            where mask and dtype fit.
        max_features: the same for Eq, Ek and Ev.
        min_kv_len: the smallest S.
        min_q_len: the smallest L.
        devices: of the run.
        drawn_len: the largest L and S that thorough draws; 64 or ``max_len`` by default.
        variants: of the property, names to options; a case is drawn with one option of each.
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
    drawn_len: int | None = None
    variants: Mapping[str, Sequence[str | int | bool]] = field(default_factory=dict)

    @property
    def longest_drawn(self) -> int:
        """The largest L and S that is drawn."""
        return self.drawn_len or min(self.max_len, 64)

    @functools.cached_property
    def longest(self) -> int:
        """The largest L and S of all."""
        return max(
            [
                self.max_len,
                self.longest_drawn,
                *(max(case.q_len, case.kv_len) for case in self.beyond),
            ]
        )

    @functools.cached_property
    def widest(self) -> int:
        """The largest Eq, Ek and Ev of all."""
        return max([self.max_features, *(_features(case) for case in self.beyond)])

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
            and _features(case) <= self.widest
            and case.device in self.devices
        )


def _features(case: Case) -> int:
    return max(case.query_size, case.key_size, case.value_size)
