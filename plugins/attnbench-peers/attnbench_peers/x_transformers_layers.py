"""x-transformers: encoders and decoders by every option that changes attention."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

import attnbench
from attnbench.adapters import layer, sdpa
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers", "attnbench_mechanisms"]

DTYPES = ("float32", "float64")  # half types raise with a mask: x_transformers_half_mask
INSTALLED = LIBRARIES["x-transformers"].installed is not None

DECODERS: dict[str, dict[str, Any]] = {
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


def _decoder(size: int, **options: Any) -> nn.Module:
    from x_transformers import Decoder

    made: nn.Module = Decoder(dim=size, depth=1, heads=2, attn_dim_head=8, verbose=False, **options)
    return made


def _encoder(size: int, **options: Any) -> nn.Module:
    from x_transformers import Encoder

    made: nn.Module = Encoder(dim=size, depth=1, heads=2, attn_dim_head=8, verbose=False, **options)
    return made


def _two(size: int) -> int:
    return max(2, size)


def _attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    from x_transformers.attend import Attend

    if attn_mask is not None:  # of two dimensions, it would be one of keys
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    output: Tensor = Attend()(query, key, value, mask=attn_mask)[0]
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``Attend``."""
    if INSTALLED:
        yield sdpa(
            _attend,
            name="x_transformers_attend",
            conventions={
                "masks": ("boolean",),
                "hidden_slots": "finite",
                "internal_dtype": "float32",  # of the softmax
            },
        )


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """``Encoder`` and ``Decoder``."""
    if not INSTALLED:
        return
    known: dict[str, Any]
    for name in ("plain", "alibi", "rotary", "flash"):
        make = partial(_encoder, **DECODERS[name])
        known = {"mask": "mask", "cache_name": None, "dtypes": DTYPES}
        yield layer(make, name=f"x_transformers_encoder_{name}", **known)
    for name, options in DECODERS.items():
        make = partial(_decoder, **options)
        dtypes = DTYPES[:1] if name == "dynamic" else DTYPES  # x_transformers_dynamic_half
        sizes = _two if name == "shifted" else None  # one half of the features is shifted
        known = {"mask": "mask", "cache_name": None, "causal": True, "dtypes": dtypes}
        yield layer(make, name=f"x_transformers_{name}", sizes=sizes, **known)
