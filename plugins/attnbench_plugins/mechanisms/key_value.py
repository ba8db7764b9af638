r"""Key-value attention of a sequence over its own last W states, strictly before each.

Each state is split into a key and a value. With the default score, over the last W keys,
:math:`M = \tanh(W_Y K + (W_h k_t) 1^\top), \alpha = \mathrm{softmax}(w^\top M)`; then
:math:`r = V \alpha^\top` and :math:`h^*_t = \tanh(W_r r + W_x v_t)`. Query ``(..., L, Eq)`` holds
the :math:`k_t`, L = S. Source: Daniluk et al. 2017, arXiv:1702.04521. Time and memory are O(L·W).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench import OptionError, ShapeError, Sizes
from attnbench.testing import make_scoring, prepare
from attnbench_plugins._floats import Rows, attended, matvec, pooled
from attnbench_plugins._projection import Projection
from attnbench_plugins.mechanisms._windows import band
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "additive"


class KeyValueAttention(nn.Module):
    """Attend to the last states, and combine with the value of the current one.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function; the paper's is ``additive``.
        window: W, number of earlier states that a state sees.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = _SCORING,
        window: int = 3,
    ) -> None:
        super().__init__()
        if window < 1:
            raise OptionError(f"key_value: window={window}, but is at least 1.")
        self.window = window
        self.scoring = make_scoring(scoring, query_size, key_size)
        self.read_proj = Projection(value_size, value_size)
        self.value_proj = Projection(value_size, value_size)
        for proj in (self.read_proj, self.value_proj):
            nn.init.normal_(proj.weight, std=(2 * value_size) ** -0.5)

    def edges(
        self, query: Tensor, _kv_len: int, _seen: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The first and last slot ``(L,)`` that each state sees; they may be before slot 0."""
        now = torch.arange(query.shape[-2], device=query.device)
        return now - self.window, now - 1

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
        """The output ``(..., L, Ev)``, and on request the weights ``(..., L, S)``.

        A query whose keys are all hidden by a mask gives zeros; a query without an earlier state in
        its window gives tanh(W_x v_t).
        """
        # it is always causal; with a mask, causality decides which slots no query sees
        masked = attn_mask is not None or (valid_lens is not None and valid_lens.dim() > 1)
        call = prepare(
            self, query, key, value, attn_mask, valid_lens, is_causal and masked, dropout_p
        )
        if query.shape[-2] != key.shape[-2]:
            raise ShapeError(
                f"key_value is self-attention, but the query has length {query.shape[-2]} and the "
                f"key {key.shape[-2]}; a state is one row of each."
            )
        low, high = self.edges(query, key.shape[-2])
        slots = band(call, low, self.window, low=low, high=high)
        read, weights = slots.attend(
            self.scoring, call, dropout_p=dropout_p, return_weights=return_weights
        )
        output = call.zero_empty_rows((self.read_proj(read) + self.value_proj(call.value)).tanh())
        return output if weights is None else (output, weights)


def _sizes(sizes: Sizes, scoring: str = _SCORING) -> Sizes:
    return legal_sizes(sizes, scoring).replace(kv_len=sizes.q_len)


def _reference(
    module: KeyValueAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    seen = [any(column) for column in zip(*allowed, strict=True)]
    value = [row if yes else [0.0] * len(row) for row, yes in zip(value, seen, strict=True)]
    near = [
        [yes and t - module.window <= s < t for s, yes in enumerate(may)]
        for t, may in enumerate(allowed)
    ]
    w_r, w_x = module.read_proj.weight.tolist(), module.value_proj.weight.tolist()
    output = []
    rows = attended(pair_score(module.scoring), query, key, near)
    for v, weights, may in zip(value, rows, allowed, strict=True):
        both = zip(matvec(w_r, pooled(weights, value)), matvec(w_x, v), strict=True)
        output.append([math.tanh(a + b) if any(may) else 0.0 for a, b in both])
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``key_value``."""
    yield attnbench.MechanismSpec(
        name="key_value",
        make=KeyValueAttention,
        formula="h* = tanh(W_r r + W_x v_t), r = Σ_{t−W≤j<t} softmax_j(a(k_t, k_j)) v_j",
        source="Daniluk et al. 2017, arXiv:1702.04521",
        sizes=_sizes,
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=(
            "only_window_has_weight",
            "window_sums_to_one",
            "looks_back_at_most_its_window",
            "padding_is_inert",
        ),
        exempt={
            "weights_sum_to_one": "the first state has no earlier one, and a mask may hide all of "
            "a window; the law window_sums_to_one takes its place",
            "masked_slots_are_inert": "a state's own value is in its output, also where the mask "
            "hides it from itself; the law padding_is_inert takes its place",
            "dropout_keeps_the_mean": "what is read goes through a tanh, whose mean is another",
            "every_attendable_key_matters": "only keys in the window have weight; the law "
            "only_window_has_weight takes its place",
            "keys_permute_freely": "the window goes by position",
            "queries_permute_freely": "the window goes by position",
        },
        variants=({"scoring": "bilinear", "window": 1},),
    )
