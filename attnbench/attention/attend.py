"""``attend``: the one function that calls scoring functions and kernels.

It checks the inputs, combines masks, lengths and causality into one mask, makes hidden slots and
empty rows harmless, and handles sizes of zero. The scoring function or kernel that it then calls
need not deal with any of these.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from attnbench._signing import ORIGIN
from attnbench.attention.arguments import check_inputs, expand_heads, heads_are_rows
from attnbench.attention.calls import call_of, check_features
from attnbench.attention.dispatch import call_case, choose, rows_stand_alone
from attnbench.attention.masks import Mask, broadcast_mask
from attnbench.attention.softmax import pool, softmax_weights
from attnbench.errors import (
    DeviceError,
    DtypeError,
    ShapeError,
    UsageError,
)
from attnbench.registry.catalog import registry
from attnbench.specs import KernelSpec, ScoringSpec


def _prepare(module_or_name: nn.Module | str, query: Tensor, key: Tensor) -> nn.Module:
    if isinstance(module_or_name, nn.Module):
        return module_or_name
    if not isinstance(module_or_name, str):
        raise UsageError(
            f"attend takes a module or the name of a scoring function, not {module_or_name!r}."
        )
    spec = registry().get(module_or_name)
    if not isinstance(spec, ScoringSpec):
        raise UsageError(
            f"{module_or_name!r} is a {spec.kind}, but "
            "attend takes a scoring function; call the mechanism's module itself, or name the "
            "scoring function and give kernel=."
        )
    module = spec.make(query.shape[-1], key.shape[-1])
    return module.to(dtype=query.dtype, device=query.device)


def scores_of(module: nn.Module, query: Tensor, key: Tensor) -> Tensor:
    """Compute the scores of a module, and check their shape and dtype.

    Raises:
        ShapeError: they are not ``(..., L, S)``.
        DtypeError: they are neither in the query's dtype nor in float32.
    """
    scores = module(query, key)
    where = getattr(module, ORIGIN, type(module).__name__).partition("@")[0]
    if not isinstance(scores, Tensor):
        raise DtypeError(f"{where} returned {type(scores).__name__}, but scores are a tensor.")
    shape = (*query.shape[:-1], key.shape[-2])
    if tuple(scores.shape) != shape:
        raise ShapeError(
            f"{where} returned scores of shape {tuple(scores.shape)}, but query "
            f"{tuple(query.shape)} and key {tuple(key.shape)} have scores {shape}.",
        )
    kind = query.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    if scores.dtype not in (query.dtype, torch.float32, cast):
        raise DtypeError(
            f"{where} returned scores in {scores.dtype}, but they should be in "
            f"{query.dtype} or torch.float32."
        )
    if scores.device != query.device:
        raise DeviceError(f"{where} returned scores on {scores.device}, not on {query.device}.")
    return scores


def attend_plain(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    *,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute scores, softmax and weighted sum one after the other: ``(output, weights)``."""
    weights = softmax_weights(scores_of(module, query, key), mask)
    output = pool(weights, value, dropout_p=dropout_p)
    return output.to(query.dtype), weights.to(query.dtype)


def attend_with(
    kernel: KernelSpec,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    *,
    is_causal: bool,
) -> Tensor:
    """Compute the output of a kernel; rows without keys are unmasked for it, then zeroed."""
    if is_causal:
        return kernel.attend(module, query, key, value, is_causal=True)
    output = kernel.attend(module, query, key, value, attn_mask=mask.opened().as_tensor())
    empty = mask.empty_rows
    return output if empty is None else output.masked_fill(empty, 0.0)


@overload
def attend(
    module_or_name: nn.Module | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = ...,
    valid_lens: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    enable_gqa: bool = ...,
    kernel: str | KernelSpec | None = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def attend(
    module_or_name: nn.Module | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = ...,
    valid_lens: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    enable_gqa: bool = ...,
    kernel: str | KernelSpec | None = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def attend(
    module_or_name: nn.Module | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    kernel: str | KernelSpec | None = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with a scoring function: score, mask, normalise, pool.

    Args:
        module_or_name: a scoring function's module, or the name of one (with fresh parameters).
        query: ``(..., L, Eq)``, floating point. Any size may be 0.
        key: ``(..., S, Ek)``, dtype, device and leading sizes of ``query``.
        value: ``(..., S, Ev)``, likewise.
        attn_mask: boolean (True = may attend) or floating (added to the scores), at least two
            dimensions, broadcasts to ``(..., L, S)``.
        valid_lens: integers: ``(B,)``, one length per item, or ``(B, L)``, one per query.
        is_causal: hide the future, aligned to the bottom right; combines with a mask.
        dropout_p: share of weights to drop, with the rest rescaled, if the module is in training.
        enable_gqa: the heads (third-last size) of key and value divide the query's.
        kernel: ``"auto"`` uses the kernel of highest priority that supports the call, ``"plain"``
            uses none. A name, or a spec that need not be registered, uses that kernel.
        return_weights: return ``(output, weights)``, with the weights before dropout.

    Returns:
        Output ``(..., L, Ev)`` in the dtype of ``query``; a row with no key left is zeros. With
        ``return_weights``, also weights ``(..., L, S)``.

    Raises:
        ShapeError, DtypeError, DeviceError, MaskError: the inputs do not fit together.
        UnknownNameError: there is no scoring function or kernel of that name.
        UsageError: the named kernel cannot run this call.
    """
    check_inputs(query, key, value)
    if not 0.0 <= dropout_p < 1.0:
        raise UsageError(f"dropout_p = {dropout_p}, but should be in [0, 1).")
    independent = enable_gqa and rows_stand_alone(module_or_name)
    if independent and heads_are_rows(query, key, value, attn_mask, valid_lens):
        return _attend_by_heads(
            module_or_name,
            query,
            key,
            value,
            attn_mask=attn_mask,
            valid_lens=valid_lens,
            dropout_p=dropout_p,
            kernel=kernel,
            return_weights=return_weights,
        )
    if enable_gqa:
        key, value = expand_heads(query, key, value)
    call = call_of(query, key, value, attn_mask, valid_lens, is_causal)
    module = _prepare(module_or_name, query, key)
    check_features(module, query, key)
    if 0 in query.shape or 0 in key.shape or value.shape[-1] == 0:
        return _attend_to_nothing(query, key, value, return_weights, call.mask)
    key, value, mask, flag = call.key, call.value, call.mask, call.is_causal
    dropout_p = dropout_p if module.training else 0.0
    plain_only = return_weights or dropout_p > 0.0
    if plain_only and kernel not in ("auto", "plain", None):
        raise UsageError(
            f"kernel={kernel!r} does not support {'weights' if return_weights else 'dropout'}, "
            "which only the plain path does; leave kernel='auto'."
        )
    plain_only = plain_only or kernel in ("plain", None)
    spec = None if plain_only else choose(module, kernel, call_case(query, key, value, mask, flag))
    if spec is not None:
        return attend_with(spec, module, query, key, value, mask, is_causal=flag)
    output, weights = attend_plain(module, query, key, value, mask, dropout_p=dropout_p)
    return (output, weights) if return_weights else output


def _attend_by_heads(
    module_or_name: nn.Module | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None,
    return_weights: bool,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with the query heads of each key head as further rows of one head."""
    if attn_mask is not None:
        broadcast_mask(attn_mask, (*query.shape[:-1], key.shape[-2]))
    rows = query.reshape(*key.shape[:-2], -1, query.shape[-1])
    call: Any = attend  # its overloads know no bool
    found = call(
        module_or_name,
        rows,
        key,
        value,
        attn_mask=attn_mask,
        return_weights=return_weights,
        **options,
    )
    output: Tensor = found[0] if return_weights else found
    output = output.reshape(*query.shape[:-1], value.shape[-1])
    if not return_weights:
        return output
    return output, found[1].reshape(*query.shape[:-1], key.shape[-2])


def _attend_to_nothing(
    query: Tensor, key: Tensor, value: Tensor, return_weights: bool, mask: Mask
) -> Tensor | tuple[Tensor, Tensor]:
    """Zeros, connected to the graph by empty sums; if only E is 0, the mean of the values."""
    zero = sum((t.flatten()[:0].sum() for t in (query, key, value)), query.new_zeros(()))
    scores = query.new_zeros(*query.shape[:-1], key.shape[-2]) + zero
    weights = softmax_weights(scores, mask)
    output = pool(weights, value).to(query.dtype) + zero
    return (output, weights.to(query.dtype)) if return_weights else output
