"""Outputs that a candidate gave before, some of which the judge asks for again.

What was sent first and what the same memory holds later must be equal. So a candidate cannot hand
out the same buffers in turn, whatever its own side says of them.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from torch import Tensor

_MOST, _MOST_BYTES = 64, 1 << 27
_FURTHER = ((2, 20), (16, 60))
"""After how many further outputs one is asked for again; one of each kind is always waited for."""


@dataclass(frozen=True, eq=False)
class _Chosen:
    number: int
    due: int
    kind: int
    copy: Tensor


class OldOutputs:
    """Which outputs the candidate's side holds, and which of them are asked for again.

    Args:
        chance: draws when.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0
        self._sizes: deque[int] = deque()
        self._chosen: list[_Chosen] = []

    @property
    def held(self) -> int:
        """How many of the last outputs the candidate's side has to hold."""
        return len(self._sizes)

    def add(self, copy: Tensor) -> None:
        """Count an output, of which this is a copy, and perhaps choose it."""
        self._count += 1
        self._sizes.append(copy.numel() * copy.element_size())
        while self.held > _MOST or (self.held > 2 and sum(self._sizes) > _MOST_BYTES):
            self._sizes.popleft()
        for kind in {*range(len(_FURTHER))} - {one.kind for one in self._chosen}:
            due = self._count + self._chance.randint(*_FURTHER[kind])
            self._chosen.append(_Chosen(self._count, due, kind, copy))

    def due(self) -> list[tuple[int, Tensor]]:
        """Those to be asked for now: the number of outputs after each, and its copy."""
        oldest = self._count - self.held + 1
        now = [one for one in self._chosen if one.due <= self._count or one.number <= oldest]
        now = [one for one in now if one.number < self._count]
        self._chosen = [one for one in self._chosen if one not in now]
        return [(self._count - one.number, one.copy) for one in now]
