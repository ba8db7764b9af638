"""MONAI: its self-attention block and its transformer block, by path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

import attnbench
from attnbench.adapters import layer
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_layers"]


def _block(size: int, **options: Any) -> nn.Module:
    from monai.networks.blocks.selfattention import SABlock

    made: nn.Module = SABlock(size, 2, **options)
    return made


def _transformer(size: int) -> nn.Module:
    from monai.networks.blocks.transformerblock import TransformerBlock

    made: nn.Module = TransformerBlock(size, 16, 2)
    return made


def _even(size: int) -> int:
    return -(-size // 2) * 2


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """``SABlock`` and ``TransformerBlock``."""
    if not LIBRARIES["monai"].installed:
        return
    yield layer(_block, name="monai_block", sizes=_even, mask="attn_mask")
    yield layer(
        lambda size: _block(size, use_flash_attention=True),
        name="monai_block_flash",
        sizes=_even,
        mask=None,  # what it does with one is a finding: monai_flash_padding
    )
    yield layer(
        lambda size: _block(size, causal=True, sequence_length=512),
        name="monai_block_causal",
        sizes=_even,
        mask=None,
        causal=True,
    )
    yield layer(_transformer, name="monai_transformer", sizes=_even, mask="attn_mask")
