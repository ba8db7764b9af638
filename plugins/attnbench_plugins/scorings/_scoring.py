"""The option ``scoring=`` of a mechanism: the address of a registered scoring function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attnbench import Sizes
from attnbench.testing import resolve, scoring_of


def legal_sizes(sizes: Sizes, scoring: str) -> Sizes:
    """The nearest sizes that a scoring function supports."""
    subject = resolve(scoring)[0]
    if subject.maker.equal_sizes:
        sizes = sizes.replace(key_size=sizes.query_size)
    return subject.maker.sizes(sizes) if subject.maker.sizes is not None else sizes


def pair_score(module: nn.Module) -> Callable[[list[float], list[float]], float]:
    """A function that scores one query and one key, given as lists of Python floats.

    It is the scoring function's own reference. If that has none or is not registered, as in a
    mechanism over a score that is still being written, its module is used.
    """
    spec = scoring_of(module)
    reference = None if spec is None else spec.reference
    if reference is not None:
        return lambda q, k: reference(module, q, k)

    def score(q: list[float], k: list[float]) -> float:
        query, key = (torch.tensor([x], dtype=torch.float64) for x in (q, k))
        return float(module(query, key))

    return score
