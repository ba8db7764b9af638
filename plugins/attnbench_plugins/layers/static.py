"""Rotary self-attention whose cache is a buffer of fixed size.

Source: Su et al. 2021, arXiv:2104.09864; the buffer as in most serving code.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import StaticCache, bounded
from attnbench_plugins.layers._positions import Rotary

__all__ = ["StaticAttention"]


class StaticAttention(SelfAttention):
    """Attend to the current and all earlier tokens, stored in a buffer."""

    capacity = 64
    positioned = Rotary


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``static_attention``."""
    yield attnbench.LayerSpec(
        name="static_attention",
        make=StaticAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=bounded(StaticCache, StaticAttention.capacity),
        sizes=legal_size,
        formula="head_i = Σ_{j ≤ t} softmax_j(a(R_t W_qⁱx_t, R_j W_kⁱx_j)) W_vⁱx_j",
        source="Su et al. 2021, arXiv:2104.09864",
        laws=("left_padding_is_inert",),
        conventions={"positions": "relative", "hidden_slots": "any"},
        same_as="rotary_attention",
    )
