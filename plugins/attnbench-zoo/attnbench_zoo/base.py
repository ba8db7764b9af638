"""What a mutant and its right twin are, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnbench import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec

__all__ = ["BLOCK", "Group", "Mutant", "Spec", "Twin", "widen"]

BLOCK = 64
"""Positions in a block, for mistakes that only more of them show."""


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half types as float32, all others as they are."""
    half = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t.dtype in half else t for t in tensors)


Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


@dataclass(frozen=True, eq=False)
class Twin:
    """A right implementation, made so that a mistake is one overridden method.

    Args:
        name: of the twin.
        spec: what is checked; every invariant passes or is skipped.
    """

    name: str
    spec: Spec


@dataclass(frozen=True, eq=False)
class Mutant:
    """A twin with one edit.

    Args:
        name: what is wrong.
        bugs: where it was seen, ``project#number``; ``("own",)`` for one that no issue tells of.
        mistake: the edit in one sentence.
        twin: the right twin.
        spec: what is checked.
        killers: the invariants that are meant to catch it; each of them has to.
    """

    name: str
    bugs: tuple[str, ...]
    mistake: str
    twin: Twin
    spec: Spec
    killers: tuple[str, ...]


class Group:
    """Adds mutants of one twin to a topic's list, as a decorator.

    Args:
        twin: what they are mutants of.
        into: the topic's list.
    """

    def __init__(self, twin: Twin, into: list[Mutant]) -> None:
        self.twin, self._into = twin, into

    def __call__(
        self, *bugs: str, killers: tuple[str, ...] = (), **changes: Any
    ) -> Callable[[type], type]:
        """Add the decorated class as a mutant; its docstring is the mistake.

        Args:
            bugs: where it was seen.
            killers: the invariants meant to catch it.
            changes: fields of the twin's spec that the mutant needs otherwise.
        """

        def add(cls: type) -> type:
            name = _snake(cls.__name__)
            field = "attend" if isinstance(self.twin.spec, KernelSpec) else "make"
            made = cls() if field == "attend" else cls
            spec = replace(self.twin.spec, name=name, **{field: made, **changes})
            mistake = " ".join((cls.__doc__ or "").split())
            self._into.append(Mutant(name, bugs, mistake, self.twin, spec, killers))
            return cls

        return add


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
