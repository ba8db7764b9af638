"""The inputs of subjects, and the tensors of a case, all drawn from the case's seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnbench.attention.masks import Mask, fold, window_mask
from attnbench.cases.case import Case

_OFFSET = {"float64": 1024.0, "float32": 1024.0, "bfloat16": 32.0, "float16": 32.0}
_FLOAT16_MAX = 65504.0


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of a subject, with torch's names; each is equal to itself alone.

    Args:
        query: ``(*lead, L, Eq)``.
        key: ``(*lead, S, Ek)``.
        value: ``(*lead, S, Ev)``.
        attn_mask: ``None``, boolean or floating, broadcasts to ``(*lead, L, S)``.
        valid_lens: ``None``, ``(B,)`` or ``(B, L)``.
        is_causal: whether to hide the future.
        dropout_p: probability of dropout, for subjects that accept it.
        enable_gqa: whether key and value have grouped heads.
        scale: factor of the scores instead of ``Eq ** -0.5``, for mechanisms that accept it.
        causal: alignment of causality by the subject's convention; ``"always"`` applies it
            whatever ``is_causal`` is.
        window_size: ``(before, after)``, -1 for no limit, around each query's position.
        softcap: a score s becomes ``softcap * tanh(s / softcap)``.
        sinks: ``(H,)``, score of an extra key per head, whose value is zero.
        alibi_slopes: ``(H,)``, decrease of a score per step of distance between query and key.
        k_scale, v_scale: broadcast to key and value, which they multiply.
        head_offset: number of heads before the first of the query.
    """

    floating: ClassVar[tuple[str, ...]] = ("query", "key", "value")

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    valid_lens: Tensor | None = None
    is_causal: bool = False
    dropout_p: float = 0.0
    enable_gqa: bool = False
    scale: float | None = None
    causal: str = "bottom_right"
    window_size: tuple[int, int] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    head_offset: int | None = None

    def replace(self, **changes: Any) -> Inputs:
        """The same inputs with some fields replaced."""
        return replace(self, **changes)

    @property
    def mask(self) -> Mask:
        """Mask, lengths and causality combined into one mask."""
        return fold(
            self.attn_mask,
            self.valid_lens,
            self.is_causal,
            lead=tuple(self.query.shape[:-2]),
            q_len=self.query.shape[-2],
            kv_len=self.key.shape[-2],
            device=self.query.device,
            causal=self.causal,
            window_size=self.window_size,
        )

    @property
    def allowed(self) -> Tensor:
        """``(*lead, L, S)``, boolean: the keys that each query may attend to; a copy."""
        shape = (*self.query.shape[:-1], self.key.shape[-2])
        allowed = self.mask.allowed
        if allowed is None:
            return torch.ones(shape, dtype=torch.bool, device=self.query.device)
        return allowed.expand(shape).clone()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors that are not ``None``."""
        for name in ("query", "key", "value", "attn_mask", "valid_lens"):
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def map(self, change: Any) -> Inputs:
        """The same inputs with ``change(tensor)`` for query, key and value."""
        return replace(
            self, query=change(self.query), key=change(self.key), value=change(self.value)
        )


class LayerInputs(Inputs):
    """The inputs of a layer.

    For invariants that use query, key and value, each of these is ``hidden``.

    Args:
        hidden: ``(B, L, E)``.
        padding_mask: ``None`` or boolean ``(B, L)``, True for a real token.
    """

    floating: ClassVar[tuple[str, ...]] = ("hidden",)

    def __init__(self, hidden: Any = None, padding_mask: Tensor | None = None) -> None:
        super().__init__(hidden, hidden, hidden)
        object.__setattr__(self, "padding_mask", padding_mask)

    padding_mask: Tensor | None

    @property
    def hidden(self) -> Tensor:
        """The hidden states."""
        return self.query

    def replace(self, **changes: Any) -> LayerInputs:
        """The same inputs with some fields replaced."""
        return LayerInputs(**{"hidden": self.hidden, "padding_mask": self.padding_mask, **changes})

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors that are not ``None``."""
        yield "hidden", self.hidden
        if self.padding_mask is not None:
            yield "padding_mask", self.padding_mask

    def map(self, change: Any) -> LayerInputs:
        """The same inputs with ``change(hidden)``."""
        return self.replace(hidden=change(self.hidden))


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """Copy a tensor to another memory layout (``expanded`` repeats the first item)."""
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "heads" and tensor.dim() > 2:
        return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "strided":
        wide = tensor.new_empty(*tensor.shape[:-1], 2 * tensor.shape[-1])
        wide[..., ::2] = tensor
        wide[..., 1::2] = float("nan")  # the elements between must not be read
        return wide[..., ::2]
    if layout == "offset":
        wide = tensor.new_full(
            (*tensor.shape[:-2], tensor.shape[-2] + 2, tensor.shape[-1] + 3), float("nan")
        )
        wide[..., 1:-1, 2:-1] = tensor
        return wide[..., 1:-1, 2:-1]
    if layout == "expanded" and tensor.dim() > 2:
        return tensor[:1].expand(tensor.shape)
    return tensor.contiguous()


def _values(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*case.lead, *shape, generator=generator, dtype=torch.float64)

    query = normal(case.q_len, case.query_size)
    key = normal(case.kv_len, case.key_size)
    value = normal(case.kv_len, case.value_size)
    if case.regime == "huge":
        query, key = query * 32, key * 32
    elif case.regime == "tiny":
        query, key = query / 1024, key / 1024
    elif case.regime == "equal_keys":
        key = key[..., :1, :].expand_as(key)
    elif case.regime == "zero_keys":
        key = torch.zeros_like(key)
    elif case.regime == "near_overflow":
        # features add up, with one sign, to a first score of 2 · 65504; over √E it fits for E > 4
        size = math.sqrt(2 * _FLOAT16_MAX / max(case.query_size, 5))
        query, key = size * (1 + query / 64), size * (1 + key / 64)
    elif case.regime == "opposed":
        query, key = 16 * query.abs(), -16 * key.abs()
    elif case.regime == "far":
        offset = _OFFSET.get(case.dtype, 32.0)
        query, key = query + offset, key + offset
    return query, key, value


def _one_key_each(allowed: Tensor, generator: torch.Generator) -> Tensor:
    """Allow one key in each row of a mask, so that no row is empty."""
    rows = allowed.shape[:-1]
    keep = torch.randint(allowed.shape[-1], (*rows, 1), generator=generator)
    return allowed.scatter(-1, keep, True)


def _mask(case: Case, generator: torch.Generator) -> dict[str, Any]:
    """The keyword arguments for the case's mask, on the CPU, floating masks in float64."""

    def boolean(*shape: int) -> Tensor:
        allowed = torch.rand(*shape, case.kv_len, generator=generator) < 0.6
        return _one_key_each(allowed, generator)

    full = (*case.lead, case.q_len)
    batch = case.lead[:1]
    shapes = {
        "boolean": full,
        "boolean_shared": (case.q_len,),
        "key_row": (1,),
        "key_padding": (*batch, *[1] * len(case.lead)),
    }
    lengths = {"padding": batch, "causal_padding": batch, "lengths_2d": (*batch, case.q_len)}
    if case.mask in shapes:
        return {"attn_mask": boolean(*shapes[case.mask])}
    if case.mask in lengths:
        shape = lengths[case.mask]
        drawn = {"valid_lens": torch.randint(1, case.kv_len + 1, shape, generator=generator)}
        return {"is_causal": True, **drawn} if case.mask == "causal_padding" else drawn
    match case.mask:
        case "bias" | "floating":
            bias = torch.randn(*full, case.kv_len, generator=generator, dtype=torch.float64)
            if case.mask == "floating":
                bias = bias.masked_fill(~boolean(*full), float("-inf"))
            return {"attn_mask": bias}
        case "causal":
            return {"is_causal": True}
        case "window":
            diagonal = window_mask(case.q_len, case.kv_len, 1, 1)
            return {"attn_mask": _one_key_each(diagonal, generator)}
        case "empty_row":
            allowed = boolean(*full)
            empty = torch.randint(case.q_len, (*case.lead, 1, 1), generator=generator)
            rows = torch.arange(case.q_len).unsqueeze(-1)
            return {"attn_mask": allowed & (rows != empty)}
    return {}


def make_inputs(case: Case) -> Inputs:
    """Draw the tensors of a case on the CPU in float64, so that they are the same on any device.

    One generator draws all of them; with one each, query, key and value would be equal.
    """
    generator = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)
    query, key, value = (
        lay_out(tensor.to(dtype=dtype).to(case.device), case.layout)
        for tensor in _values(case, generator)
    )
    mask = _mask(case, generator)
    for name, tensor in mask.items():
        if isinstance(tensor, Tensor):
            tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
            mask[name] = tensor.to(case.device)
    return Inputs(query, key, value, **mask)


def largest(*tensors: Tensor) -> float:
    """The largest absolute value of tensors, of what is finite in them; 0 where nothing is."""
    finite = (tensor.detach().double().nan_to_num(0.0, 0.0, 0.0) for tensor in tensors)
    return max(float(tensor.abs().amax()) if tensor.numel() else 0.0 for tensor in finite)
