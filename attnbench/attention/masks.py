"""Masks: which keys each query may attend to, and what is added to the scores.

In a boolean mask, ``True`` means that the query may attend. A floating mask is added to the scores,
and hides a key where it is ``-inf``. Valid lengths, causality and windows become boolean masks.
:func:`fold` combines all of them to one :class:`Mask`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.attention.torch_internals import is_concrete
from attnbench.errors import DeviceError, MaskError


@dataclass(frozen=True)
class Mask:
    """Everything that hides keys from queries or is added to their scores.

    Args:
        allowed: boolean, broadcasts to ``(..., L, S)``; ``None`` if nothing is hidden.
        bias: floating, finite where ``allowed``, broadcasts to ``(..., L, S)``; added to scores.
    """

    allowed: Tensor | None = None
    bias: Tensor | None = None

    @property
    def empty_rows(self) -> Tensor | None:
        """``(..., L, 1)``: the queries with no key left; ``None`` if nothing is hidden."""
        return None if self.allowed is None else ~self.allowed.any(-1, keepdim=True)

    @property
    def hidden_keys(self) -> Tensor | None:
        """``(..., S, 1)``: the keys hidden from every query; ``None`` if nothing is hidden."""
        return None if self.allowed is None else ~self.allowed.any(-2).unsqueeze(-1)

    def opened(self) -> Mask:
        """The same mask, except that rows without any key may attend to all keys."""
        if self.allowed is None:
            return self
        return Mask(self.allowed | ~self.allowed.any(-1, keepdim=True), self.bias)

    def as_tensor(self) -> Tensor | None:
        """One mask as torch takes it: ``None``, boolean, or floating with ``-inf``."""
        if self.bias is None or self.allowed is None:
            return self.allowed if self.bias is None else self.bias
        return torch.where(self.allowed, self.bias, float("-inf"))


def causal_mask(
    q_len: int,
    kv_len: int,
    device: torch.device | str | None = None,
    *,
    top_left: bool = False,
) -> Tensor:
    """``(L, S)``, boolean: query ``i`` sees keys up to ``i + S - L`` (bottom right).

    Args:
        q_len: L.
        kv_len: S.
        device: device of the mask.
        top_left: query ``i`` sees keys up to ``i`` instead.
    """
    ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
    return ones.tril(0 if top_left else kv_len - q_len)


def window_mask(
    q_len: int,
    kv_len: int,
    before: int | None,
    after: int | None,
    device: torch.device | str | None = None,
) -> Tensor:
    """``(L, S)``, boolean: query ``i`` at ``t = i + S - L`` sees keys ``t - before .. t + after``.

    Args:
        q_len: L.
        kv_len: S.
        before: number of visible keys before its own position; ``None`` for all.
        after: number of visible keys after it; ``None`` for all.
        device: device of the mask.

    Raises:
        MaskError: a window is negative.
    """
    for name, size in (("before", before), ("after", after)):
        if size is not None and size < 0:
            raise MaskError(f"{name} = {size}, but should be at least 0, or None for no limit.")
    position = torch.arange(q_len, device=device).unsqueeze(-1) + (kv_len - q_len)
    distance = torch.arange(kv_len, device=device) - position
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if before is not None:
        allowed = allowed & (distance >= -before)
    if after is not None:
        allowed = allowed & (distance <= after)
    return allowed


def valid_lens_mask(valid_lens: Tensor, lead: tuple[int, ...], q_len: int, kv_len: int) -> Tensor:
    """Valid lengths as a boolean mask that broadcasts to ``(*lead, L, S)``.

    Args:
        valid_lens: integers: ``(B,)``, one length per item, or ``(B, L)``, one per query, where
            ``B`` is the first leading size.
        lead: leading sizes of the scores.
        q_len: L.
        kv_len: S; a length is between 0 and S.

    Raises:
        MaskError: the dtype or shape is wrong, or a length is out of range (not checked while a
            CUDA graph is captured).
    """
    if valid_lens.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        raise MaskError(f"valid_lens has dtype {valid_lens.dtype}, but should be an integer dtype.")
    batch = lead[0] if lead else None
    shapes = [(batch,), (batch, q_len)]
    if batch is None or tuple(valid_lens.shape) not in shapes:
        sizes = f"({batch},) or ({batch}, {q_len})" if lead else "a batch, and the query has none"
        raise MaskError(
            f"valid_lens has shape {tuple(valid_lens.shape)}, but should have {sizes}: "
            "one length per item or one per query, over the first leading size."
        )
    # no value on the device can be read while a CUDA graph is being captured
    captured = valid_lens.is_cuda and torch.cuda.is_current_stream_capturing()
    if valid_lens.numel() and is_concrete(valid_lens) and not captured:
        low, high = int(valid_lens.min()), int(valid_lens.max())
        if low < 0 or high > kv_len:
            raise MaskError(
                f"valid_lens holds {low if low < 0 else high}, "
                f"but there are {kv_len} keys, so lengths lie in 0 .. {kv_len}."
            )
    lens = valid_lens if valid_lens.dim() == 2 else valid_lens.unsqueeze(-1)
    lens = lens.reshape(lens.shape[0], *[1] * (len(lead) - 1), lens.shape[1], 1)
    return torch.arange(kv_len, device=valid_lens.device) < lens


def broadcast_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Check that a mask's dtype and shape fit the scores.

    Raises:
        MaskError: it is neither boolean nor floating, has less than two dimensions, or does not
            broadcast to ``shape``.
    """
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise MaskError(
            f"attn_mask has dtype {mask.dtype}, but should be boolean (True = may attend) or "
            "floating (added to the scores); for 0 and 1 write attn_mask.bool()."
        )
    mask_shape = tuple(mask.shape)
    fits = 2 <= len(mask_shape) <= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(mask_shape), reversed(shape), strict=False)
    )
    if not fits:
        raise MaskError(
            f"attn_mask has shape {mask_shape}, but should have at least two dimensions "
            f"and broadcast to the scores' {shape}."
        )


def fold(
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    *,
    lead: tuple[int, ...],
    q_len: int,
    kv_len: int,
    device: torch.device,
    causal: str = "bottom_right",
    window_size: tuple[int, int] | None = None,
) -> Mask:
    """Combine a mask, valid lengths, causality and a window.

    Args:
        attn_mask: boolean or floating, broadcasts to ``(*lead, L, S)``.
        valid_lens: integers ``(B,)`` or ``(B, L)``; see :func:`valid_lens_mask`.
        is_causal: also hide the future.
        lead: leading sizes of the scores.
        q_len: L.
        kv_len: S.
        device: device of the scores.
        causal: alignment of causality, ``"bottom_right"`` or ``"top_left"``; ``"always"`` hides the
            future whatever ``is_causal`` says.
        window_size: numbers of visible keys before and after each position; -1 for all.

    Raises:
        MaskError: a mask or length does not fit.
        DeviceError: a mask is on another device.
    """
    for name, tensor in (("attn_mask", attn_mask), ("valid_lens", valid_lens)):
        if tensor is not None and tensor.device != device:
            raise DeviceError(
                f"{name} is on {tensor.device}, but the query is on {device}; "
                f"move it with {name}.to({str(device)!r})."
            )
    bias: Tensor | None = None
    parts: list[Tensor] = []
    if attn_mask is not None:
        broadcast_mask(attn_mask, (*lead, q_len, kv_len))
        if attn_mask.dtype == torch.bool:
            parts.append(attn_mask)
        else:
            hidden = attn_mask == float("-inf")
            bias = attn_mask.masked_fill(hidden, 0.0)
            parts.append(~hidden)
    if valid_lens is not None:
        parts.append(valid_lens_mask(valid_lens, lead, q_len, kv_len))
    if is_causal or causal == "always":
        parts.append(causal_mask(q_len, kv_len, device, top_left=causal == "top_left"))
    if window_size is not None:
        before, after = (None if size < 0 else size for size in window_size)
        parts.append(window_mask(q_len, kv_len, before, after, device))
    allowed: Tensor | None = None
    for part in parts:
        allowed = part if allowed is None else allowed & part
    if allowed is not None:  # one dimension may stand for all queries, but not for all keys
        allowed = allowed.expand(*allowed.shape[:-1], kv_len)
    return Mask(allowed, bias)
