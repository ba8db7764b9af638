r"""Self-attention without a query: a hidden layer of the key alone, :math:`v_a^\top \tanh(W_a k)`.

Source: Lin et al. 2017, arXiv:1703.03130 (a single row of their weights). The weights do not depend
on the query, so one row of scores ``(..., S)`` serves every query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot, matvec
from attnbench_plugins._projection import Projection
from attnbench_plugins._unused import for_every_query
from attnbench_plugins.scorings._tanh import tanh_moment


class SelfAdditiveScoring(nn.Module):
    """Score a key with a hidden layer of tanh units; the query is ignored.

    Args:
        query_size: Eq, ignored.
        key_size: Ek.
        hidden_size: h, the number of hidden units.
    """

    def __init__(self, query_size: int, key_size: int, *, hidden_size: int = 16) -> None:
        super().__init__()
        if hidden_size < 1:
            raise attnbench.SpecError(
                f"self_additive: hidden_size = {hidden_size}, but is at least 1."
            )
        self.key_proj = Projection(key_size, hidden_size)
        self.score_vector = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters so that scores of standard normal keys have variance 1."""
        size = self.key_proj.in_features
        nn.init.normal_(self.key_proj.weight, std=size**-0.5)
        moment = tanh_moment((size, 1.0))
        nn.init.normal_(self.score_vector, std=(moment * self.score_vector.numel()) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part that a decoder caches per key: its score, ``(..., S, 1)``."""
        wide, weight, vector = widen(key, self.key_proj.weight, self.score_vector)
        return ((wide @ weight.mT).tanh() @ vector).unsqueeze(-1)

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` from key scores ``(..., S, 1)``."""
        return for_every_query(projected.squeeze(-1), query)


def _reference(module: SelfAdditiveScoring, _q: list[float], k: list[float]) -> float:
    hidden = [math.tanh(x) for x in matvec(module.key_proj.weight.tolist(), k)]
    return dot(module.score_vector.tolist(), hidden)


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``self_additive``."""
    yield attnbench.ScoringSpec(
        name="self_additive",
        make=SelfAdditiveScoring,
        formula="v_aᵀ tanh(W_a k)",
        source="Lin et al. 2017, arXiv:1703.03130",
        reference=_reference,
        laws=("unit_variance", "query_independent"),
    )
