r"""Monotonic attention: the attended position never moves back from one query to the next.

Query i continues from where query i - 1 stopped, and stops at key j with probability
:math:`p_{ij} = \sigma(a(q_i, k_j) + r)`. Training uses the expectation,
:math:`\alpha_{ij} = p_{ij} \sum_{m \le j} \alpha_{i-1,m} \prod_{n=m}^{j-1} (1 - p_{in})`,
evaluation the first key with :math:`p \ge \tfrac12`. Rows sum to at most 1: a query that stops
nowhere gives zeros, and so do all after it. Source: Raffel et al. 2017, arXiv:1704.00784.

The parallel forms of both are exact and only multiply and add positive numbers. Neither divides by
a product of probabilities as the textbook form does, which underflows after some dozens of keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

import attnbench
from attnbench import OptionError
from attnbench.testing import make_scoring, pool, prepare, scores_of, widen
from attnbench_plugins._floats import Rows
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "additive"


class ForcedForwardAttention(nn.Module):
    """Attend to one key per query, never before that of the previous query.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.
        offset: initial value of the learned r; lower values make queries look further ahead.
        noise: standard deviation of noise added to scores in training, which rewards certainty.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = _SCORING,
        offset: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        if noise < 0:
            raise OptionError(f"forced_forward: noise={noise}, but must be at least 0.")
        self.scoring = make_scoring(scoring, query_size, key_size)
        self.offset = nn.Parameter(torch.tensor(float(offset)))
        self.noise = noise

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)``, and on request the weights ``(..., L, S)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal)
        kv_len = key.shape[-2]
        (scores,) = widen(scores_of(self.scoring, call.query, call.key))
        scores = scores + self.offset.to(scores.dtype)
        if call.mask.bias is not None:
            scores = scores + call.mask.bias.to(scores.dtype)
        if scores.numel() == 0:
            weights = scores
        elif self.training:
            scores = scores + self.noise * torch.randn_like(scores) if self.noise else scores
            weights = expected(scores, call.mask.allowed)
        else:
            chosen = _forward_choice(scores, call.mask.allowed)
            weights = one_hot(chosen, kv_len + 1)[..., :kv_len].to(scores.dtype)
            weights = call.zero_empty_rows(weights)
        output = pool(weights, call.value).to(query.dtype)
        return (output, weights.to(query.dtype)) if return_weights else output


def _carried(stay: Tensor, enter: Tensor) -> Tensor:
    r"""All :math:`x_j = \text{stay}_j x_{j-1} + \text{enter}_j` over the last dimension.

    By doubling: after k rounds an entry includes the 2^k before it, so it takes log2(S) rounds.
    """
    step = 1
    while step < enter.shape[-1]:
        enter = enter + stay * pad(enter[..., :-step], (step, 0))
        stay = stay * pad(stay[..., :-step], (step, 0))
        step *= 2
    return enter


def expected(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The probability ``(..., L, S)`` that a query stops at a key, by p(stop) = sigmoid(score).

    Each query continues from where the previous one stopped. Hidden keys are skipped, and a query
    without keys leaves the position unchanged. All keys of a row are computed at once.
    """
    stop, go = scores.sigmoid(), (-scores).sigmoid()
    if allowed is not None:
        stop, go = stop.masked_fill(~allowed, 0.0), go.masked_fill(~allowed, 1.0)
    # a query reaches key j if it started there or continued from key j - 1
    go = pad(go[..., :-1], (1, 0))
    alive = None
    if allowed is not None:
        alive = allowed.any(-1, keepdim=True).expand(*stop.shape[:-1], 1)
    standing = torch.zeros_like(stop[..., 0, :])
    standing[..., 0] = 1.0
    rows = []
    for row in range(stop.shape[-2]):
        weights = stop[..., row, :] * _carried(go[..., row, :], standing)
        rows.append(weights)
        # a query without keys leaves the position unchanged
        standing = weights if alive is None else weights.where(alive[..., row, :], standing)
    return torch.stack(rows, -2)


def _forward_choice(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The slot ``(..., L)`` at which each query stops; S if it and all later queries stop nowhere.

    A query stops at the first key with a positive score, starting where the previous one stopped:
    a map from slots to slots. The maps are composed by doubling, in log2(L) rounds.
    """
    kv_len = scores.shape[-1]
    stops = scores > 0
    if allowed is not None:
        stops = stops & allowed
    slots = torch.arange(kv_len, device=scores.device)
    here = torch.where(stops, slots, kv_len)
    jump = pad(here.flip(-1).cummin(-1).values.flip(-1), (0, 1), value=kv_len)
    if allowed is not None:  # a query without keys leaves the position unchanged
        every = torch.arange(kv_len + 1, device=scores.device)
        jump = torch.where(allowed.any(-1, keepdim=True), jump, every)
    step = 1
    while step < jump.shape[-2]:
        later = jump[..., step:, :].gather(-1, jump[..., :-step, :])
        jump = torch.cat([jump[..., :step, :], later], -2)
        step *= 2
    return jump[..., 0]


def _reference(
    module: ForcedForwardAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    score = pair_score(module.scoring)
    offset: Any = module.offset.tolist()  # a number, which torch's hints call a list
    position, output = 0, []
    for q, may in zip(query, allowed, strict=True):
        row = [0.0] * len(value[0])
        if any(may):
            while position < len(key):
                if may[position] and score(q, key[position]) + offset > 0:
                    row = value[position]
                    break
                position += 1
        output.append(row)
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``forced_forward``."""
    yield attnbench.MechanismSpec(
        name="forced_forward",
        make=ForcedForwardAttention,
        formula="α_ij = p_ij Σ_{m≤j} α_{i−1,m} Π_{m≤n<j} (1 − p_in), p = σ(a(q, k) + r)",
        source="Raffel et al. 2017, arXiv:1704.00784",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "return_weights"),
        laws=(
            "pools_values",
            "rows_sum_to_at_most_one",
            "position_never_moves_back",
            "training_is_the_expectation",
            "padding_is_inert",
            "trailing_padding_equals_deleting",
        ),
        exempt={
            "bias_is_added_to_scores": "a query stops at the first key that will do, and that key "
            "has all the weight",
            "weights_sum_to_one": "a query that stops at no key has no weight; the law "
            "rows_sum_to_at_most_one takes its place",
            "masked_slots_are_inert": "a key hidden from this query moves it if a query before it "
            "stopped there; the law padding_is_inert takes its place",
            "masking_equals_deleting": "other queries see other keys, and a query starts where the "
            "one before it stopped; the law trailing_padding_equals_deleting takes its place",
            "query_alone_equals_query_among_others": "a query starts where the one before it "
            "stopped; the law position_never_moves_back takes its place",
            "queries_permute_freely": "a query starts where the one before it stopped; the law "
            "position_never_moves_back takes its place",
            "keys_permute_freely": "a query stops at the first key that will do",
            "hidden_keys_stay_hidden_at_extreme_scores": "other queries see other keys, and a "
            "query starts where the one before it stopped",
            "every_attendable_key_matters": "only the key that a query stops at is read",
            "training_equals_evaluation": "training is the expectation of evaluation's choice; the "
            "law training_is_the_expectation takes its place",
            "output_lies_within_values": "a query that stops at no key gives zeros",
            "decode_equals_prefill": "a step alone does not know where the one before it stopped",
            "valid_lengths_count_the_keys": "other queries see other keys, and a query starts "
            "where the one before it stopped",
        },
        variants=({"scoring": "scaled_dot"},),
    )
