"""Layers of other libraries, in one table: the class of each, and how it is made and called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES


@dataclass(frozen=True)
class Row:
    """A layer.

    Args:
        library: distribution that it is in.
        address: its class, ``package.module:Class``.
        options: arguments of the class beside the size; a function gives one for a size.
        mask: name of its argument for padding; ``None`` for none.
        size: name of its argument for the number of features.
        told: what the adapter is told; sizes are multiples of 2 from 3 on unless it says others.
    """

    library: str
    address: str
    options: dict[str, Any]
    mask: str | None = "mask"
    size: str = "dim"
    told: Mapping[str, Any] = field(default_factory=dict)


def _multiple_of(factor: int, least: int, size: int) -> int:
    return max(least, -(-size // factor) * factor)


HEADS = {"heads": 2, "dim_head": 8}
WIDE = {"dtypes": ("float32", "float64")}
EVEN = {"sizes": partial(_multiple_of, 2, 2)}
FOURS = {"sizes": partial(_multiple_of, 4, 4)}

_MEMORY_EFFICIENT = "memory-efficient-attention-pytorch", "memory_efficient_attention_pytorch"
_BLOCK = "monai", "monai.networks.blocks.selfattention:SABlock"
_MONAI: dict[str, Any] = {"mask": "attn_mask", "size": "hidden_size", "told": EVEN}
_UNMASKED: dict[str, Any] = {**_MONAI, "mask": None}
_PERFORMER = "performer-pytorch", "performer_pytorch:SelfAttention"
_GEOMETRIC = "torch-geometric", "torch_geometric.nn.attention"
_BY_HEADS: dict[str, Any] = {"heads": 2, "head_channels": lambda size: size // 2}
_LOCAL = "local-attention", "local_attention.transformer:LocalMHA"
_LOCAL_HEADS = {"window_size": 4, "heads": 2, "dim_head": 4}
_ANY = {**WIDE, "sizes": None}  # half types raise: rotary angles make the weights float32

ROWS: dict[str, Row] = {
    "conformer_block": Row(
        "conformer", "conformer:ConformerBlock", {**HEADS, "conv_kernel_size": 3}
    ),
    "fast_transformer": Row(
        "fast-transformer-pytorch",
        "fast_transformer_pytorch.fast_transformer_pytorch:FastAttention",
        HEADS,
    ),
    "linear_attention_transformer": Row(
        "linear-attention-transformer",
        "linear_attention_transformer:LinearAttentionTransformer",
        {"depth": 1, "max_seq_len": 1024, "heads": 2, "dim_head": 8, "shift_tokens": True},
        "input_mask",
    ),
    "mega_normed": Row(
        "mega-pytorch",
        "mega_pytorch:MegaLayer",
        {"ema_heads": 2, "attn_dim_qk": 8, "attn_dim_value": 16, "norm_mhesa_heads": True},
        None,
        told={"causal": True, **WIDE},  # Fourier transforms
    ),
    "memory_efficient": Row(
        _MEMORY_EFFICIENT[0],
        f"{_MEMORY_EFFICIENT[1]}:Attention",
        {**HEADS, "memory_efficient": True, "q_bucket_size": 4, "k_bucket_size": 4},
    ),
    "memory_efficient_flash": Row(
        _MEMORY_EFFICIENT[0],
        f"{_MEMORY_EFFICIENT[1]}:FlashAttention",
        {**HEADS, "q_bucket_size": 4, "k_bucket_size": 4},
    ),
    "mixture_of_attention": Row(
        "mixture-of-attention", "mixture_of_attention.mixture_of_attention:Attention", HEADS
    ),
    "monai_block": Row(*_BLOCK, {"num_heads": 2}, **_MONAI),
    # what it does with a mask is a finding: monai_flash_padding
    "monai_block_flash": Row(*_BLOCK, {"num_heads": 2, "use_flash_attention": True}, **_UNMASKED),
    "monai_block_causal": Row(
        *_BLOCK,
        {"num_heads": 2, "causal": True, "sequence_length": 512},
        **{**_UNMASKED, "told": {**EVEN, "causal": True}},
    ),
    "monai_transformer": Row(
        "monai",
        "monai.networks.blocks.transformerblock:TransformerBlock",
        {"mlp_dim": 16, "num_heads": 2},
        **_MONAI,
    ),
    "performer": Row(*_PERFORMER, {"heads": 2, "dim_head": 4}, told=EVEN),
    "performer_generalized": Row(
        *_PERFORMER, {"heads": 2, "dim_head": 4, "generalized_attention": True}, told=EVEN
    ),
    "performer_local": Row(
        *_PERFORMER,
        {"heads": 2, "dim_head": 4, "local_heads": 2, "local_window_size": 4},
        told={**EVEN, **WIDE},  # as local-attention's
    ),
    "torch_geometric_performer": Row(
        _GEOMETRIC[0],
        f"{_GEOMETRIC[1]}:PerformerAttention",
        _BY_HEADS,
        size="channels",
        told={**FOURS, **WIDE},
    ),
    "torch_geometric_polynormer": Row(
        _GEOMETRIC[0],
        f"{_GEOMETRIC[1]}:PolynormerAttention",
        _BY_HEADS,
        size="channels",
        told={**FOURS, **WIDE},
    ),
    "torch_geometric_set": Row(
        _GEOMETRIC[0],
        "torch_geometric.nn.aggr.utils:SetAttentionBlock",
        {"heads": 2},
        size="channels",
        told=FOURS,
    ),
    "local_attention": Row(*_LOCAL, _LOCAL_HEADS, told=_ANY),
    "local_attention_causal": Row(
        *_LOCAL, {**_LOCAL_HEADS, "causal": True}, told={**_ANY, "causal": True, "window": 5}
    ),
}

_BLOCKS = {"depth": 1, "heads": 2, "attn_dim_head": 8, "verbose": False}
_DECODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alibi": {"alibi_pos_bias": True},
    "rotary": {"rotary_pos_emb": True},
    "relative": {"rel_pos_bias": True},
    "dynamic": {"dynamic_pos_bias": True},
    "grouped": {"attn_kv_heads": 1},
    "normed": {"attn_qk_norm": True},
    "sigmoid": {"attn_sigmoid": True},
    "top_k": {"attn_sparse_topk": 4},
    "memory": {"attn_num_mem_kv": 2},
    "zero_key": {"attn_add_zero_kv": True},
    "sink": {"attn_head_learned_sink": True},
    "softclamp": {"attn_softclamp_logits": True},
    "selective": {"attn_selective": True},
    "forget_gates": {"attn_data_dependent_alibi": True},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "orthogonal_values": {"attn_orthog_projected_values": True},
    "shifted": {"shift_tokens": 1},
    "flash": {"attn_flash": True},
}
_ODD: dict[str, dict[str, Any]] = {
    "dynamic": {"dtypes": ("float32",)},  # x_transformers_dynamic_half
    "shifted": {"sizes": partial(max, 2)},  # one half of the features is shifted
}

for _name in ("plain", "alibi", "rotary", "flash"):
    _options = {**_BLOCKS, **_DECODERS[_name]}
    ROWS[f"x_transformers_encoder_{_name}"] = Row(
        "x-transformers", "x_transformers:Encoder", _options, told=_ANY
    )
for _name, _more in _DECODERS.items():  # half types raise with a mask: x_transformers_half_mask
    _told = {**_ANY, "causal": True, **_ODD.get(_name, {})}
    ROWS[f"x_transformers_{_name}"] = Row(
        "x-transformers", "x_transformers:Decoder", {**_BLOCKS, **_more}, told=_told
    )


class _Named(nn.Module):
    """A layer that hands its keywords on unseen, with the mask under the name that it looks for."""

    def __init__(self, row: Row, size: int) -> None:
        super().__init__()
        module, _, name = row.address.partition(":")
        options = {n: v(size) if callable(v) else v for n, v in row.options.items()}
        self.layer = getattr(import_module(module), name)(**{row.size: size}, **options)
        self.name = row.mask

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        given = {} if mask is None or self.name is None else {self.name: mask}
        output: Tensor = self.layer(hidden, **given)
        return output


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """Those of the libraries that are installed."""
    for name, row in ROWS.items():
        if LIBRARIES[row.library].installed:
            told = {"sizes": partial(_multiple_of, 2, 3), **row.told}
            mask = None if row.mask is None else "mask"
            yield layer(partial(_Named, row), name=name, mask=mask, **told)
