r"""Local attention in step with the query: softmax over the keys in :math:`[t - D, t + D]`.

Source: Luong, Pham and Manning 2015, arXiv:1508.04025 (local-m). Query i of L is at
:math:`t = \lfloor (i + \tfrac12) S / L \rfloor`, which is i when L = S. Query ``(..., L, Eq)``, key
``(..., S, Ek)``, value ``(..., S, Ev)`` give ``(..., L, Ev)``, in time and memory O(L·D).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

import attnbench
from attnbench import OptionError
from attnbench.testing import make_scoring, prepare
from attnbench_plugins._floats import Rows, attended, pooled
from attnbench_plugins.mechanisms._windows import band
from attnbench_plugins.scorings._scoring import legal_sizes, pair_score

_SCORING = "bilinear"


class LocalMonotonicAttention(nn.Module):
    """Softmax over a window around the query's own position.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.
        window: D, number of keys on either side; 0 leaves one key.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = _SCORING,
        window: int = 2,
    ) -> None:
        super().__init__()
        if window < 0:
            raise OptionError(f"local_monotonic: window={window}, but is at least 0.")
        self.window = window
        self.scoring = make_scoring(scoring, query_size, key_size)

    def edges(
        self, query: Tensor, kv_len: int, _seen: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The first and last slot ``(L,)`` of each query's window; they may be outside the keys."""
        q_len = query.shape[-2]
        steps = 2 * torch.arange(q_len, device=query.device) + 1
        t = steps * kv_len // (2 * max(q_len, 1))
        return t - self.window, t + self.window

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
        call = prepare(self, query, key, value, attn_mask, valid_lens, dropout_p=dropout_p)
        low, high = self.edges(query, key.shape[-2])
        slots = band(call, low, 2 * self.window + 1, low=low, high=high, is_causal=is_causal)
        output, weights = slots.attend(
            self.scoring, call, dropout_p=dropout_p, return_weights=return_weights
        )
        return output if weights is None else (output, weights)


def _reference(
    module: LocalMonotonicAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    centres = [int((i + 0.5) * len(key) / len(query)) for i in range(len(query))]
    near = [
        [yes and abs(s - t) <= module.window for s, yes in enumerate(may)]
        for t, may in zip(centres, allowed, strict=True)
    ]
    rows = attended(pair_score(module.scoring), query, key, near)
    return [pooled(weights, value) for weights in rows]


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``local_monotonic``."""
    yield attnbench.MechanismSpec(
        name="local_monotonic",
        make=LocalMonotonicAttention,
        formula="o = Σ_{|j−t|≤D} softmax_j(a(q, k_j)) v_j, t = ⌊(i + ½)S/L⌋",
        source="Luong et al. 2015, arXiv:1508.04025 (local-m)",
        sizes=partial(legal_sizes, scoring=_SCORING),
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("pools_values", "only_window_has_weight", "window_sums_to_one"),
        exempt={
            "weights_sum_to_one": "a mask may hide all of a window, which leaves no weight; "
            "the law window_sums_to_one takes its place",
            "masking_equals_deleting": "deleting a key moves the keys behind it, and with them "
            "what lies in a window; the law only_window_has_weight takes its place",
            "query_alone_equals_query_among_others": "the window goes by the query's position, "
            "which a query alone does not have",
            "every_attendable_key_matters": "only keys in the window have weight; the law "
            "only_window_has_weight takes its place",
            "keys_permute_freely": "the window goes by position",
            "output_lies_within_values": "a mask may hide all of a window, which gives zeros",
            "decode_equals_prefill": "positions are scaled by the numbers of queries and keys, and "
            "a step alone has one query",
            "valid_lengths_count_the_keys": "leaving keys out scales the positions anew",
            "hidden_keys_stay_hidden_at_extreme_scores": "leaving keys out scales the positions "
            "anew",
            "queries_permute_freely": "the window goes by position",
        },
        variants=({"scoring": "additive", "window": 1},),
    )
