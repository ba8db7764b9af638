"""Causal self-attention over hidden states with learned position vectors.

Source: Gehring et al. 2017, arXiv:1705.03122; Radford et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import GROWING
from attnbench_plugins.layers._positions import Learned

__all__ = ["LearnedPositionsAttention"]


class LearnedPositionsAttention(SelfAttention):
    """Attend to the current and all earlier tokens, each with the vector of its position."""

    positioned = Learned


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``learned_positions_attention``."""
    yield attnbench.LayerSpec(
        name="learned_positions_attention",
        make=LearnedPositionsAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=GROWING,
        sizes=legal_size,
        formula="x_t ← x_t + p_t, then as causal_attention",
        source="Gehring et al. 2017, arXiv:1705.03122",
        laws=("left_padding_is_inert",),
        conventions={"hidden_slots": "any"},
    )
