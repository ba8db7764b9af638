"""Causal self-attention without positions: only the causal mask distinguishes tokens.

Source: Haviv et al. 2022, arXiv:2203.16634; grouped heads: Ainslie et al. 2023, arXiv:2305.13245.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import GROWING

__all__ = ["CausalAttention"]


class CausalAttention(SelfAttention):
    """Attend to the current and all earlier tokens, whatever their positions."""

    causal = True


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``causal_attention``."""
    yield attnbench.LayerSpec(
        name="causal_attention",
        make=CausalAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=GROWING,
        sizes=legal_size,
        formula="head_i = Σ_{j ≤ t} softmax_j(a(W_qⁱx_t, W_kⁱx_j)) W_vⁱx_j",
        source="Haviv et al. 2022, arXiv:2203.16634",
        laws=("left_padding_is_inert",),
        conventions={"positions": "relative", "hidden_slots": "any"},
        variants=({"scoring": "additive"},),
    )
