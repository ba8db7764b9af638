"""Causal self-attention whose queries and keys are rotated by their positions.

Source: Su et al. 2021, arXiv:2104.09864.

Positions are relative only if rotating query and key alike leaves the score unchanged (law
``rotation_invariant``).
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import GROWING
from attnbench_plugins.layers._positions import Rotary

__all__ = ["RotaryAttention"]


class RotaryAttention(SelfAttention):
    """Attend to the current and all earlier tokens, rotated by their positions."""

    positioned = Rotary


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``rotary_attention``."""
    yield attnbench.LayerSpec(
        name="rotary_attention",
        make=RotaryAttention,
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=GROWING,
        sizes=legal_size,
        formula="head_i = Σ_{j ≤ t} softmax_j(a(R_t W_qⁱx_t, R_j W_kⁱx_j)) W_vⁱx_j",
        source="Su et al. 2021, arXiv:2104.09864",
        laws=("left_padding_is_inert",),
        conventions={"positions": "relative", "hidden_slots": "any"},
        variants=({"scoring": "gaussian"}, {"heads": 4, "kv_heads": 4}),
    )
