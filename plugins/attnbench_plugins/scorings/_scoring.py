"""The option ``scoring=`` of a mechanism: an address of any registered scoring function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attnbench import Sizes
from attnbench.testing import resolve, scoring_of

__all__ = ["legal_sizes", "pair_score"]


def legal_sizes(sizes: Sizes, scoring: str) -> Sizes:
    """Sizes at which a scoring function can serve."""
    subject = resolve(scoring)[0]
    if subject.maker.equal_sizes:
        sizes = sizes.replace(key_size=sizes.query_size)
    return subject.maker.sizes(sizes) if subject.maker.sizes is not None else sizes


def pair_score(module: nn.Module) -> Callable[[list[float], list[float]], float]:
    """The score of one query and one key as Python floats.

    From the scoring function's own reference; from its module where it has none, or is not
    registered, as in a mechanism over a score that is still being written.
    """
    spec = scoring_of(module)
    reference = None if spec is None else spec.reference
    if reference is not None:
        return lambda q, k: reference(module, q, k)

    def score(q: list[float], k: list[float]) -> float:
        query, key = (torch.tensor([x], dtype=torch.float64) for x in (q, k))
        return float(module(query, key))

    return score
