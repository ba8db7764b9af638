"""Right implementations, by others and by hand: none is accused.

A wrapper does what the contract asks of a mechanism and torch leaves to its caller: it silences
slots that no query may see, and gives zeros for a query that may see none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench import MechanismSpec, ScoringSpec
from attnbench_zoo.right.attention import ATTENTION, wide
from attnbench_zoo.right.scorings import SPECS
from attnbench_zoo.right.streaming import Streaming


class Wrapped(nn.Module):
    """Attention by a function of four-dimensional tensors, with what torch leaves to its caller."""

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        """Output ``(..., L, Ev)``."""
        lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
        allowed = torch.ones(*lead, q_len, kv_len, dtype=torch.bool, device=query.device)
        bias = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            allowed = allowed & attn_mask
        elif attn_mask is not None:
            allowed, bias = allowed & (attn_mask > -math.inf), attn_mask.expand(allowed.shape)
        empty_rows, hidden_keys = ~allowed.any(-1, keepdim=True), ~allowed.any(-2).unsqueeze(-1)
        key, value = key.masked_fill(hidden_keys, 0.0), value.masked_fill(hidden_keys, 0.0)
        opened = allowed | empty_rows
        mask = opened if bias is None else bias.masked_fill(empty_rows, 0.0)
        tensors = (query, key, value, mask)
        output = self.core(*(t.reshape(-1, 1, *t.shape[-2:]) for t in tensors))
        return output.reshape(*lead, q_len, -1).masked_fill(empty_rows, 0.0)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)`` with a boolean or floating mask that leaves each row a key."""
        raise NotImplementedError


class Sdpa(Wrapped):
    """``scaled_dot_product_attention`` with one of its backends."""

    backend = SDPBackend.MATH

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)``."""
        with sdpa_kernel([self.backend]):
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class SdpaFlash(Sdpa):
    """The flash backend, which needs key and value of one size."""

    backend = SDPBackend.FLASH_ATTENTION

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)``, through tensors padded with zeros."""
        width, wanted = max(key.shape[-1], value.shape[-1]), value.shape[-1]
        query = query * (width / query.shape[-1]) ** 0.5  # since torch scales by the padded size
        q, k, v = (
            nn.functional.pad(t, (0, width - t.shape[-1])).contiguous() for t in (query, key, value)
        )
        return super().core(q, k, v, mask)[..., :wanted]


class Flex(Wrapped):
    """FlexAttention, not compiled, with the mask as a change of scores."""

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)``."""
        from torch.nn.attention.flex_attention import flex_attention

        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, s: Tensor) -> Tensor:
            return score + mask[b, h, i, s]

        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it warns that it is not compiled
            output = flex_attention(query, key, value, score_mod=add)
        assert isinstance(output, Tensor)
        return output


class Chunked(Wrapped):
    """Softmax over all keys, seven queries at a time."""

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)``."""
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
        parts = []
        for part, added in zip(torch.split(query, 7, -2), torch.split(mask, 7, -2), strict=True):
            scores = (wide(part) / math.sqrt(query.shape[-1])) @ wide(key).mT + wide(added)
            parts.append((scores.softmax(-1) @ wide(value)).to(query.dtype))
        return torch.cat(parts, -2)


class Online(Wrapped):
    """A running softmax over blocks of keys."""

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Output ``(B, 1, L, Ev)``."""
        return Streaming()(self, query, key, value, attn_mask=mask)


def _right(
    cls: type[Wrapped],
    exempt: Mapping[str, str] | None = None,
    conventions: Mapping[str, Any] | None = None,
) -> MechanismSpec:
    name = cls.__name__.lower()
    return MechanismSpec(
        name=name,
        make=cls,
        equal_sizes=True,
        reference=ATTENTION.reference,
        laws=("pools_values",),
        exempt=exempt or {},
        conventions=conventions or {},
    )


RIGHT: list[MechanismSpec | ScoringSpec] = [
    _right(Sdpa),
    _right(SdpaFlash, {"bias_gets_its_gradient": "torch's flash kernel gives a mask no gradient"}),
    _right(
        Flex,
        {
            "vmap_equals_batch": "FlexAttention raises under torch.func.vmap",
            "compiled_equals_eager": "on a CPU the compiler finds no kernel for a score_mod that "
            "reads a tensor computed in the same graph",
        },
        {"gradients": False},  # it has no backward pass on a CPU
    ),
    _right(Chunked),
    _right(Online),
    *SPECS.values(),
]
