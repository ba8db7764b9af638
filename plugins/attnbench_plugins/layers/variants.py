"""The built-in layers: self-attention by what it sees, its positions and its cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attnbench
from attnbench_plugins.layers._attention import SelfAttention, legal_size
from attnbench_plugins.layers._caches import GrowingCache, RotatingCache, StaticCache, cached
from attnbench_plugins.layers._positions import Alibi, Learned, Rotary


class EncoderAttention(SelfAttention):
    """Attend to all tokens, earlier and later, as in an encoder."""

    causal = False


class CausalAttention(SelfAttention):
    """Attend to the current and all earlier tokens: only the causal mask distinguishes them.

    Grouped heads: Ainslie et al. 2023, arXiv:2305.13245.
    """


class LearnedPositionsAttention(SelfAttention):
    """Attend to the current and all earlier tokens, each with the vector of its position."""

    positioned = Learned


class RotaryAttention(SelfAttention):
    """Attend to the current and all earlier tokens, rotated by their positions.

    Positions are relative only if rotating query and key alike leaves the score unchanged (law
    ``rotation_invariant``).
    """

    positioned = Rotary


class StaticAttention(RotaryAttention):
    """The same, stored in a buffer of fixed size, as in most serving code."""

    capacity = 64


class AlibiAttention(SelfAttention):
    """Attend to the current and all earlier tokens, less to distant ones."""

    positioned = Alibi


class SlidingWindowAttention(AlibiAttention):
    """Attend to the latest eight tokens, including the current one; the cache stores just these."""

    window = 8


def _layer(name: str, make: type[SelfAttention], formula: str, source: str, **fields: Any) -> Any:
    """A layer with a cache, whose positions are relative, unless the fields say otherwise."""
    known: dict[str, Any] = {
        "causal": True,
        "accepts": ("padding_mask", "cache"),
        "cache": cached(GrowingCache),
        "conventions": {"positions": "relative", "hidden_slots": "any"},
        "variants": ({"scoring": "additive"},),
    }
    return attnbench.LayerSpec(
        name=name,
        make=make,
        formula=formula,
        source=source,
        sizes=legal_size,
        laws=("left_padding_is_inert",),
        **{**known, **fields},
    )


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """The layers."""
    turned = "head_i = Σ_{j ≤ t} softmax_j(a(R_t W_qⁱx_t, R_j W_kⁱx_j)) W_vⁱx_j"
    yield _layer(
        "encoder_attention",
        EncoderAttention,
        "head_i = Σ_j softmax_j(a(W_qⁱx_t, W_kⁱx_j)) W_vⁱx_j",
        "Vaswani et al. 2017, arXiv:1706.03762",
        causal=False,
        accepts=("padding_mask",),
        cache=None,
        conventions={"positions": "none", "hidden_slots": "any"},
    )
    yield _layer(
        "causal_attention",
        CausalAttention,
        "head_i = Σ_{j ≤ t} softmax_j(a(W_qⁱx_t, W_kⁱx_j)) W_vⁱx_j",
        "Haviv et al. 2022, arXiv:2203.16634",
    )
    yield _layer(
        "learned_positions_attention",
        LearnedPositionsAttention,
        "x_t ← x_t + p_t, then as causal_attention",
        "Gehring et al. 2017, arXiv:1705.03122",
        conventions={"hidden_slots": "any"},
        variants=(),
    )
    yield _layer(
        "rotary_attention",
        RotaryAttention,
        turned,
        "Su et al. 2021, arXiv:2104.09864",
        variants=({"scoring": "gaussian"}, {"heads": 4, "kv_heads": 4}),
    )
    yield _layer(
        "static_attention",
        StaticAttention,
        turned,
        "Su et al. 2021, arXiv:2104.09864",
        cache=cached(StaticCache, StaticAttention.capacity),
        same_as="rotary_attention",
        variants=(),
    )
    yield _layer(
        "alibi_attention",
        AlibiAttention,
        "head_i = Σ_{j ≤ t} softmax_j(a(W_qⁱx_t, W_kⁱx_j) − 2^(−8i/H)·(t − j)) W_vⁱx_j",
        "Press et al. 2021, arXiv:2108.12409",
    )
    yield _layer(
        "sliding_window_attention",
        SlidingWindowAttention,
        "as alibi_attention, over j > t − 8",
        "Beltagy et al. 2020, arXiv:2004.05150",
        cache=cached(RotatingCache, SlidingWindowAttention.window),
        window=SlidingWindowAttention.window,
    )
