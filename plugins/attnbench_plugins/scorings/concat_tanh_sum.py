r"""Sum of tanh units over the concatenated query and key: :math:`c \sum_h \tanh(W[q; k] + b)_h`.

It is the additive score (Bahdanau et al. 2015, arXiv:1409.0473) with its last vector fixed to ones,
a bias, and a constant scale c for variance 1. No concatenation is materialised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot
from attnbench_plugins.scorings._tanh import tanh_moment


class ConcatTanhSumScoring(nn.Module):
    """Score with the scaled sum of a hidden layer over ``[query; key]``.

    Args:
        query_size: Eq.
        key_size: Ek, which may differ.
        hidden_size: h, the number of hidden units.
    """

    def __init__(self, query_size: int, key_size: int, *, hidden_size: int = 16) -> None:
        super().__init__()
        if hidden_size < 1:
            raise attnbench.SpecError(
                f"concat_tanh_sum: hidden_size = {hidden_size}, but is at least 1."
            )
        self.query_size = query_size
        self.weight = nn.Parameter(torch.empty(hidden_size, query_size + key_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        moment = tanh_moment((query_size, 0.5), (key_size, 0.5))
        self.scale = 1.0 / math.sqrt(moment * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weight; query and key each add 1/2 to a unit's variance; the bias is 0."""
        weight = self.weight.detach()
        for part in (weight[:, : self.query_size], weight[:, self.query_size :]):
            nn.init.normal_(part, std=(2 * part.shape[1]) ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part that a decoder caches per key: its term of the hidden layer, ``(..., S, h)``."""
        key, weight = widen(key, self.weight)
        return key @ weight[:, self.query_size :].mT

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and the keys' parts ``(..., S, h)``."""
        query, weight, bias = widen(query, self.weight, self.bias)
        hidden = query @ weight[:, : self.query_size].mT + bias
        return (hidden.unsqueeze(-2) + projected.unsqueeze(-3)).tanh().sum(-1) * self.scale


def _reference(module: ConcatTanhSumScoring, q: list[float], k: list[float]) -> float:
    pair = [*q, *k, 1.0]
    rows = zip(module.weight.tolist(), module.bias.tolist(), strict=True)
    return math.fsum(math.tanh(dot([*row, b], pair)) for row, b in rows) * module.scale


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``concat_tanh_sum``."""
    yield attnbench.ScoringSpec(
        name="concat_tanh_sum",
        make=ConcatTanhSumScoring,
        formula="Σ_h tanh(W[q; k] + b)_h / √(0.3943·h)",
        source="Bahdanau et al. 2015, arXiv:1409.0473, with the last vector fixed",
        reference=_reference,
        laws=("unit_variance",),
    )
