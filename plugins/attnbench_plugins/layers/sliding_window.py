"""Causal self-attention over the latest tokens only; the cache stores just these.

Source: Beltagy et al. 2020, arXiv:2004.05150; ALiBi: Press et al. 2021, arXiv:2108.12409.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import RotatingCache, bounded
from attnbench_plugins.layers._positions import Alibi

__all__ = ["SlidingWindowAttention"]


class SlidingWindowAttention(SelfAttention):
    """Attend to the latest eight tokens, including the current one."""

    positioned = Alibi
    window = 8


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``sliding_window_attention``."""
    yield attnbench.LayerSpec(
        name="sliding_window_attention",
        make=SlidingWindowAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=bounded(RotatingCache, SlidingWindowAttention.window),
        window=SlidingWindowAttention.window,
        sizes=legal_size,
        formula="as alibi_attention, over j > t − 8",
        source="Beltagy et al. 2020, arXiv:2004.05150",
        laws=("left_padding_is_inert",),
        conventions={"positions": "relative", "hidden_slots": "any"},
        variants=({"scoring": "additive"},),
    )
