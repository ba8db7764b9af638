r"""Soft, or global, attention: softmax over all keys, with any scoring function.

:math:`\alpha_{ij} = \mathrm{softmax}_j(a(q_i, k_j)), \; o_i = \sum_j \alpha_{ij} v_j`.
Source: Bahdanau, Cho and Bengio 2015, arXiv:1409.0473. Query ``(..., L, Eq)``, key ``(..., S, Ek)``
and value ``(..., S, Ev)`` give ``(..., L, Ev)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import Tensor, nn

import attnbench
from attnbench.testing import check_features, make_scoring
from attnbench_plugins._floats import Rows, attended, pooled
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "additive"


class SoftAttention(nn.Module):
    """Softmax over all keys.

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
        enable_gqa: bool = False,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)``, and on request the weights ``(..., L, S)``."""
        check_features(self, query, key, value)
        result: Tensor | tuple[Tensor, Tensor] = attnbench.attend(
            self.scoring,
            query,
            key,
            value,
            attn_mask=attn_mask,
            valid_lens=valid_lens,
            is_causal=is_causal,
            dropout_p=dropout_p,
            enable_gqa=enable_gqa,
            return_weights=return_weights,  # type: ignore[call-overload]
        )
        return result


def _reference(
    module: SoftAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    rows = attended(pair_score(module.scoring), query, key, allowed)
    return [pooled(weights, value) for weights in rows]


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``soft``."""
    yield attnbench.MechanismSpec(
        name="soft",
        make=SoftAttention,
        formula="o = Σ_j softmax_j(a(q, k_j)) v_j",
        source="Bahdanau et al. 2015, arXiv:1409.0473",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "enable_gqa", "return_weights"),
        laws=("pools_values",),
        variants=({"scoring": "scaled_dot"},),
    )
