r"""Local attention around a predicted position, :math:`p = S \cdot \sigma(v_p^\top \tanh(W_p q))`.

Softmax over the keys in :math:`[p - D, p + D]`, times :math:`\exp(-(s - p)^2 / 2\sigma^2)` with
:math:`\sigma = D / 2`: rows sum to less than 1. Source: Luong, Pham and Manning 2015,
arXiv:1508.04025 (local-p). S counts the slots up to the last one that the query may attend to, so
that padding after it changes nothing. Time and memory are O(L·D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

import attnbench
from attnbench import OptionError
from attnbench.testing import make_scoring, prepare
from attnbench_plugins._floats import Rows, attended, dot, matvec, pooled
from attnbench_plugins._projection import Projection
from attnbench_plugins.mechanisms._windows import band, last_slots
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "bilinear"


class LocalPredictiveAttention(nn.Module):
    """Softmax over a window around a position that the query predicts.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.
        window: D, at least 1, since σ is half of it.
        hidden_size: h, hidden units of the network that predicts the position.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = _SCORING,
        window: int = 2,
        hidden_size: int = 16,
    ) -> None:
        super().__init__()
        if window < 1 or hidden_size < 1:
            raise OptionError(
                f"local_predictive: window={window} and hidden_size={hidden_size}, but both are at "
                "least 1: the Gaussian's deviation is half the window."
            )
        self.window = window
        self.scoring = make_scoring(scoring, query_size, key_size)
        self.position_proj = Projection(query_size, hidden_size)
        self.position_vector = nn.Parameter(torch.empty(hidden_size))
        nn.init.normal_(self.position_proj.weight, std=query_size**-0.5)
        nn.init.normal_(self.position_vector, std=hidden_size**-0.5)

    def position(self, query: Tensor, slots: Tensor) -> Tensor:
        """The predicted position ``(..., L)`` among ``slots`` keys, in float64.

        The window's edge is a discontinuity; in float64 it is at the same place for every dtype.
        """
        hidden = (query.double() @ self.position_proj.weight.double().mT).tanh()
        return slots * (hidden @ self.position_vector.double()).sigmoid()

    def edges(self, query: Tensor, _kv_len: int, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last slot ``(..., L)`` of each window; they may be outside the keys."""
        p = self.position(query.detach(), seen).detach()
        return (p - self.window).ceil(), (p + self.window).floor()

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
        dense = is_causal and attn_mask is not None  # otherwise causality is a bound, not a matrix
        call = prepare(self, query, key, value, attn_mask, valid_lens, dense, dropout_p)
        bound = is_causal and not dense
        seen = last_slots(call, bound)
        p = self.position(query, seen)
        low, high = self.edges(query, key.shape[-2], seen)
        slots = band(call, low, 2 * self.window + 1, low=low, high=high, is_causal=bound)
        fall = ((slots.index - p.unsqueeze(-1)) * (2 / self.window)).square().mul(-0.5).exp()
        output, weights = slots.attend(
            self.scoring, call, factor=fall, dropout_p=dropout_p, return_weights=return_weights
        )
        return output if weights is None else (output, weights)


def _reference(
    module: LocalPredictiveAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    score = pair_score(module.scoring)
    weight, vector = module.position_proj.weight.tolist(), module.position_vector.tolist()
    output = []
    for q, may in zip(query, allowed, strict=True):
        slots = max((s + 1 for s, yes in enumerate(may) if yes), default=0)
        at = dot(vector, [math.tanh(x) for x in matvec(weight, q)])
        p = slots / (1 + math.exp(-at)) if at > -700 else 0.0
        near = [yes and abs(s - p) <= module.window for s, yes in enumerate(may)]
        soft = attended(score, [q], key, [near])[0]
        fall = (math.exp(-2 * ((s - p) / module.window) ** 2) for s in range(len(key)))
        output.append(pooled([w * f for w, f in zip(soft, fall, strict=True)], value))
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``local_predictive``."""
    yield attnbench.MechanismSpec(
        name="local_predictive",
        make=LocalPredictiveAttention,
        formula="o = Σ_{|j−p|≤D} softmax_j(a(q, k_j)) e^(−2(j−p)²/D²) v_j, p = S·σ(vᵀtanh(W q))",
        source="Luong et al. 2015, arXiv:1508.04025 (local-p)",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=(
            "pools_values",
            "only_window_has_weight",
            "rows_sum_to_at_most_one",
            "trailing_padding_equals_deleting",
        ),
        exempt={
            "weights_sum_to_one": "the Gaussian lowers the weights after the softmax; the law "
            "rows_sum_to_at_most_one takes its place",
            "masking_equals_deleting": "deleting a key moves the keys behind it away from the "
            "predicted position; the law trailing_padding_equals_deleting takes its place",
            "every_attendable_key_matters": "only keys in the window have weight; the law "
            "only_window_has_weight takes its place",
            "keys_permute_freely": "the window goes by position",
            "hidden_keys_stay_hidden_at_extreme_scores": "deleting a key moves the keys behind it "
            "away from the predicted position",
            "output_lies_within_values": "the Gaussian lowers the weights after the softmax",
        },
        variants=({"scoring": "additive", "window": 1},),
    )
