r"""Static attention: one weighting for every output step, from the mean of the queries.

:math:`\bar q = \tfrac1L \sum_i q_i, \; \alpha_j = \mathrm{softmax}_j(a(\bar q, k_j))`: all L rows
with equal masks are equal. Source: Hermann et al. 2015, arXiv:1506.03340, whose reader weights a
document once for a whole question. Scores cost O(S), not O(L·S).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn

import attnbench
from attnbench.testing import make_scoring, pool, prepare, scores_of, softmax_weights, widen
from attnbench_plugins._floats import Rows, attended, pooled
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "additive"


class StaticAttention(nn.Module):
    """Compute one row of weights for all queries.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.
    """

    def __init__(
        self, query_size: int, key_size: int, value_size: int, *, scoring: str = _SCORING
    ) -> None:
        super().__init__()
        self.scoring = make_scoring(scoring, query_size, key_size)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)``, and on request the weights ``(..., L, S)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal, dropout_p)
        mean = widen(query)[0].mean(-2, keepdim=True).to(query.dtype)
        weights = softmax_weights(scores_of(self.scoring, mean, call.key), call.mask)
        output = pool(weights, call.value, dropout_p=dropout_p if self.training else 0.0)
        rows = (*query.shape[:-1], -1)
        output, weights = output.to(query.dtype).expand(rows), weights.to(query.dtype).expand(rows)
        return (
            (output.contiguous(), weights.contiguous()) if return_weights else output.contiguous()
        )


def _reference(
    module: StaticAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    mean = [math.fsum(column) / len(query) for column in zip(*query, strict=True)]
    rows = attended(pair_score(module.scoring), [mean] * len(query), key, allowed)
    return [pooled(weights, value) for weights in rows]


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``static``."""
    yield attnbench.MechanismSpec(
        name="static",
        make=StaticAttention,
        formula="o = Σ_j softmax_j(a(mean(q), k_j)) v_j",
        source="Hermann et al. 2015, arXiv:1506.03340",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("pools_values", "all_rows_are_equal"),
        exempt={
            "query_alone_equals_query_among_others": "all queries are weighed by their mean; the "
            "law all_rows_are_equal takes its place",
            "decode_equals_prefill": "all queries are weighed by their mean, and a step's has "
            "fewer of them",
            "future_does_not_leak": "all queries are weighed by their mean, later ones too",
        },
        variants=({"scoring": "scaled_dot"},),
    )
