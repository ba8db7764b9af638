"""What a judgement draws, from its seed: numbers of which none tells of another.

A candidate sees the sizes and values of its inputs, and may find the state of the generator that
they were drawn from; torch's has 32 bits. So each call's values have a generator of their own, and
what is verified has another than what is seen; all are digests of the seed.
"""

from __future__ import annotations

import hashlib
import itertools
import random

import torch


class Secret:
    """The source of everything that a judgement draws.

    Args:
        seed: repeats it.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, itertools.count()

    def number(self, label: str) -> int:
        """A number of 256 bits, the same for the same label."""
        return int.from_bytes(hashlib.sha256(f"{label} of {self._seed}".encode()).digest())

    def chance(self, label: str) -> random.Random:
        """Draws for one purpose."""
        return random.Random(self.number(label))  # noqa: S311  # to be repeated by seed

    def generator(self) -> torch.Generator:
        """A new one each time, for the values of one call."""
        return torch.Generator().manual_seed(self.number(f"values {next(self._count)}") % 2**63)
