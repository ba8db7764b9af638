"""What a harness is, and the calls that harnesses make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench import Case
from attnbench_zoo.entries import Built, Entry

__all__ = ["HARNESSES", "PLAIN", "Harness", "cases", "gradients", "harness", "sides"]

PLAIN = Case(lead=(2, 2), q_len=32, kv_len=32, query_size=16, key_size=16, value_size=16)
"""Two items, two heads, 32 positions, no mask: what most published rules draw, made small."""


@dataclass(frozen=True)
class Harness:
    """A way to test attention.

    Args:
        name: of the rule.
        source: who publishes it, and where.
        rule: what it compares, and with which tolerance.
        passes: the calls that it makes.
        oracle: whether it takes an entry's candidate for right.
    """

    name: str
    source: str
    rule: str
    passes: str
    oracle: Callable[[Entry], bool]

    def __call__(self, entry: Entry) -> bool:
        """Whether it takes an entry's candidate for right."""
        return self.oracle(entry)


HARNESSES: list[Harness] = []


def harness(
    name: str, *, source: str, rule: str, passes: str
) -> Callable[[Callable[[Entry], bool]], Harness]:
    """Add the decorated oracle to :data:`HARNESSES`; arguments as of :class:`Harness`."""

    def add(oracle: Callable[[Entry], bool]) -> Harness:
        made = Harness(name, source, rule, passes, oracle)
        HARNESSES.append(made)
        return made

    return add


def cases(
    entry: Entry,
    *,
    masks: Iterable[str] = ("none",),
    dtypes: Iterable[str] = ("float32",),
    seeds: int = 1,
    like: Case = PLAIN,
) -> Iterator[Case]:
    """The cases among these that an entry supports; a layer has its padding for ``padding``."""
    dtypes = list(dtypes)
    for mask in masks:
        for dtype in dtypes:
            for seed in range(seeds):
                case = like.replace(mask=mask, dtype=dtype, seed=seed)
                if entry.takes(case):
                    yield case


def sides(entry: Entry, case: Case) -> tuple[Tensor, Tensor]:
    """The outputs of candidate and reference."""
    return entry.candidate(case).output(), entry.expected(case).output()


def gradients(built: Built, seed: int = 0) -> list[Tensor]:
    """The gradients of the inputs for one random gradient of the output."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in built.tensors]
    output = built.call(*leaves)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad(
        output, leaves, weights.to(output.dtype), allow_unused=True, materialize_grads=True
    )
    return list(found)
