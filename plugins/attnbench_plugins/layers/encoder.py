"""Self-attention of every token to all tokens, as in an encoder.

Source: Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from collections.abc import Iterable

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size

__all__ = ["EncoderAttention"]


class EncoderAttention(SelfAttention):
    """Attend to all tokens, earlier and later."""

    causal = False


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layer ``encoder_attention``."""
    yield attnbench.LayerSpec(
        name="encoder_attention",
        make=EncoderAttention,
        accepts=("padding_mask",),
        sizes=legal_size,
        formula="head_i = Σ_j softmax_j(a(W_qⁱx_t, W_kⁱx_j)) W_vⁱx_j",
        source="Vaswani et al. 2017, arXiv:1706.03762",
        laws=("left_padding_is_inert",),
        conventions={"positions": "none", "hidden_slots": "any"},
        variants=({"scoring": "additive"},),
    )
