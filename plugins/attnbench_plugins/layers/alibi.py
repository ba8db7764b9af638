"""Causal self-attention with a penalty on distance (ALiBi).

Source: Press et al. 2021, arXiv:2108.12409.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import GROWING
from attnbench_plugins.layers._positions import Alibi

__all__ = ["AlibiAttention"]


class AlibiAttention(SelfAttention):
    """Attend to the current and all earlier tokens, less to distant ones."""

    positioned = Alibi


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``alibi_attention``."""
    yield attnbench.LayerSpec(
        name="alibi_attention",
        make=AlibiAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=GROWING,
        sizes=legal_size,
        formula="head_i = Σ_{j ≤ t} softmax_j(a(W_qⁱx_t, W_kⁱx_j) − 2^(−8i/H)·(t − j)) W_vⁱx_j",
        source="Press et al. 2021, arXiv:2108.12409",
        laws=("left_padding_is_inert",),
        conventions={"positions": "relative", "hidden_slots": "any"},
        variants=({"scoring": "additive"},),
    )
