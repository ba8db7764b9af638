r"""Hard attention: one key per query, the most likely in evaluation, sampled in training.

Source: Xu et al. 2015, arXiv:1502.03044. The weights are one-hot; their gradient is that of the
soft weights from which they were chosen (straight-through). For a score-function loss the module
stores the log-probability of a sample: ``(module.log_prob * reward).sum()``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import Mask, make_scoring, pool, prepare, scores_of, softmax_weights
from attnbench_plugins._floats import Rows
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "additive"
_TIE = 4 * torch.finfo(torch.float32).eps
"""The relative difference up to which scores tie, the same in every dtype.

If it depended on the dtype, float32 and float64 would pick different keys wherever scores are this
close, as those of saturated units often are.
"""


class HardAttention(nn.Module):
    """Attend to one key per query: in evaluation to the first of those that tie.

    Keys tie if their scores are within 4 units in the last place of float32 of the highest score,
    relative to the largest score of the row.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.

    Attributes:
        log_prob: ``(..., L)``, log-probability of the keys sampled by the last call, 0 for a query
            without keys; ``None`` before any call and after a call in evaluation mode.
    """

    log_prob: Tensor | None

    def __init__(
        self, query_size: int, key_size: int, value_size: int, *, scoring: str = _SCORING
    ) -> None:
        super().__init__()
        self.scoring = make_scoring(scoring, query_size, key_size)
        self.log_prob = None

    def __getstate__(self) -> dict[str, Any]:
        # a tensor in a graph can be neither copied nor pickled, and is not state
        return {**self.__dict__, "log_prob": None}

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
        """The output ``(..., L, Ev)``, and on request the one-hot weights ``(..., L, S)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal)
        scores = scores_of(self.scoring, call.query, call.key)
        soft = softmax_weights(scores, call.mask)
        self.log_prob, weights = None, soft
        if soft.numel():
            chosen = _sample(soft.detach()) if self.training else _likeliest(scores, call.mask)
            if self.training:
                picked = soft.gather(-1, chosen)
                self.log_prob = picked.masked_fill(picked == 0.0, 1.0).log().squeeze(-1)
            one = torch.zeros_like(soft).scatter(-1, chosen, 1.0)
            weights = call.zero_empty_rows(one + (soft - soft.detach()))
        output = pool(weights, call.value).to(query.dtype)
        return (output, weights.to(query.dtype)) if return_weights else output


def _sample(soft: Tensor) -> Tensor:
    """Sample a key by its weight: the first of exponential clocks with rates w to ring."""
    return (soft / torch.empty_like(soft).exponential_()).argmax(-1, keepdim=True)


def _likeliest(scores: Tensor, mask: Mask) -> Tensor:
    """The key with the highest score, or the first of those that tie with it.

    Weights cannot decide this: softmax rounds away differences of scores that are small beside 1.
    """
    total = scores if mask.bias is None else scores + mask.bias.to(scores.dtype)
    hidden = torch.zeros_like(total, dtype=torch.bool) if mask.allowed is None else ~mask.allowed
    size = scores.masked_fill(hidden, 0.0).abs().amax(-1, keepdim=True)
    total = total.masked_fill(hidden, float("-inf"))
    top = total.amax(-1, keepdim=True)
    # the bias of other keys, however large, does not round the highest score
    slack = _TIE * torch.maximum(size, top.abs())
    return (total >= top - slack).to(torch.uint8).argmax(-1, keepdim=True)


def _reference(
    module: HardAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    score, rows = pair_score(module.scoring), []
    for q, may in zip(query, allowed, strict=True):
        scores = {slot: score(q, k) for slot, k in enumerate(key) if may[slot]}
        slack = _TIE * max(map(abs, scores.values()), default=0.0)
        # the first of the keys that tie, as in the module
        least = max(scores.values(), default=0.0) - slack
        slot = next((slot for slot, found in scores.items() if found >= least), None)
        rows.append([0.0] * len(value[0]) if slot is None else value[slot])
    return rows


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``hard``."""
    yield attnbench.MechanismSpec(
        name="hard",
        make=HardAttention,
        formula="o = v_j, j = argmax_j a(q, k_j); in training j ~ softmax_j(a(q, k_j))",
        source="Xu et al. 2015, arXiv:1502.03044",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "return_weights"),
        laws=(
            "pools_values",
            "picks_one_key",
            "samples_follow_soft_weights",
            "score_function_gradient_is_exact",
        ),
        exempt={
            "autocast_agrees": "rounding scores to a narrower dtype changes which key is picked",
            "bias_is_added_to_scores": "one key has all the weight, whatever it is multiplied by",
            "every_attendable_key_matters": "only the picked key's value is read; the law "
            "picks_one_key takes its place",
            "training_equals_evaluation": "training samples; the law samples_follow_soft_weights "
            "takes its place",
            "gradients_are_right": "a choice has none; the one given is that of the soft weights",
            "keys_permute_freely": "of equal keys the first is picked, whichever it is",
        },
        variants=({"scoring": "scaled_dot"},),
    )
