r"""Vector sum: :math:`w_q^\top q + w_k^\top k`, one number per query and one per key.

The query's term is the same for every key, so softmax removes it and the weights do not depend on
the query. This is the known weakness of the score, and a law that it declares.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot


class VectorSumScoring(nn.Module):
    """Score with a weighted sum of the query's and the key's entries.

    Args:
        query_size: Eq.
        key_size: Ek, which may differ.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_vector = nn.Parameter(torch.empty(query_size))
        self.key_vector = nn.Parameter(torch.empty(key_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both vectors; each term has variance 1/2 for standard normal inputs."""
        nn.init.normal_(self.query_vector, std=(2 * self.query_vector.numel()) ** -0.5)
        nn.init.normal_(self.key_vector, std=(2 * self.key_vector.numel()) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part that a decoder caches per key: its term of the sum, ``(..., S, 1)``."""
        key, w_k = widen(key, self.key_vector)
        return (key @ w_k).unsqueeze(-1)

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and the keys' terms ``(..., S, 1)``."""
        query, w_q = widen(query, self.query_vector)
        return (query @ w_q).unsqueeze(-1) + projected.mT


def _reference(module: VectorSumScoring, q: list[float], k: list[float]) -> float:
    return dot([*module.query_vector.tolist(), *module.key_vector.tolist()], [*q, *k])


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``vector_sum``."""
    yield attnbench.ScoringSpec(
        name="vector_sum",
        make=VectorSumScoring,
        formula="w_qᵀq + w_kᵀk",
        source="sum of two linear scores, as tutorials write it",
        reference=_reference,
        laws=("unit_variance", "query_independent"),
    )
