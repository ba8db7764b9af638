"""torch's own attention: by backend, by module and by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flex, layer, multihead, sdpa

EncoderLayer = partial(
    nn.TransformerEncoderLayer, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True
)

MULTIHEADS: dict[str, dict[str, Any]] = {
    "torch_multihead": {},
    "torch_multihead_no_bias": {"bias": False},
    "torch_multihead_bias_key": {"add_bias_kv": True},
    "torch_multihead_zero_key": {"add_zero_attn": True},
}
ENCODER_LAYERS: dict[str, dict[str, Any]] = {
    "torch_encoder_layer": {},
    "torch_encoder_layer_pre_norm": {"norm_first": True},
    "torch_encoder_layer_gelu": {"activation": "gelu"},
}


def _through(backend: SDPBackend) -> Callable[..., Tensor]:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(query, key, value, attn_mask, **options)

    return attend


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The fused attention by backend, FlexAttention, and nn.MultiheadAttention by options."""
    yield sdpa(scaled_dot_product_attention, name="torch_sdpa")
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        name = f"torch_sdpa_{backend.name.lower()}"
        yield sdpa(_through(backend), name=name, conventions={"hidden_slots": "finite"})
    yield flex(name="torch_flex")
    for name, options in MULTIHEADS.items():
        yield multihead(partial(nn.MultiheadAttention, **options), name=name)


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """Encoder layers, which have a fast path of their own in evaluation."""
    called: dict[str, Any] = {
        "sizes": lambda size: -(-size // 2) * 2,
        "mask": "src_key_padding_mask",
        "form": "padding",
        "conventions": {"empty_rows": "zeros"},  # as without the fast path
    }
    for name, options in ENCODER_LAYERS.items():
        make = partial(EncoderLayer, **options)
        yield layer(make, name=name, **called)
    yield layer(
        lambda size: nn.TransformerEncoder(EncoderLayer(size), 2), name="torch_encoder", **called
    )
