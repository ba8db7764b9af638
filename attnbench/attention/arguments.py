"""Checks of the arguments of an attention, before anything is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.attention.masks import broadcast_mask
from attnbench.errors import DeviceError, DtypeError, ShapeError


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that query, key and value share a floating dtype and a device, and have rank 2 or more.

    Raises:
        DtypeError, ShapeError, DeviceError: they do not.
    """
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"{name} is a {type(tensor).__name__}, but should be a torch.Tensor.")
        if not tensor.dtype.is_floating_point:
            raise DtypeError(
                f"{name} has dtype {tensor.dtype}, but should be floating-point; "
                f"write {name}.float()."
            )
        if tensor.dim() < 2:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)}, but should have at least two "
                "dimensions: (..., length, features)."
            )
    if not query.dtype == key.dtype == value.dtype:
        summary = ", ".join(f"{name} {t.dtype}" for name, t in tensors.items())
        raise DtypeError(f"mixed dtypes: {summary}; convert them to one.")
    if not query.device == key.device == value.device:
        summary = ", ".join(f"{name} on {t.device}" for name, t in tensors.items())
        raise DeviceError(f"mixed devices: {summary}; move them to one.")
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"key has {key.shape[-2]} slots and value {value.shape[-2]} "
            f"(shapes {tuple(key.shape)} and {tuple(value.shape)}), but each key has one value."
        )


def expand_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with each head repeated for the group of query heads that shares it."""
    if query.dim() < 3 or key.dim() != query.dim() or value.dim() != query.dim():
        raise ShapeError(
            f"enable_gqa needs heads in the third-last dimension, got shapes "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
        )
    expanded = []
    for name, tensor in (("key", key), ("value", value)):
        heads, kv_heads = query.shape[-3], tensor.shape[-3]
        if kv_heads == 0 or heads % kv_heads:
            raise ShapeError(
                f"{name} has {kv_heads} heads, which do not divide the query's {heads} heads."
            )
        expanded.append(tensor.repeat_interleave(heads // kv_heads, dim=-3))
    return expanded[0], expanded[1]


def heads_are_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    valid_lens: Tensor | None,
) -> bool:
    """Whether the query heads of a group can be rows of one head, so that no key is repeated.

    They can if each has a single query, as in a decoder, and the mask is the same for all of them.
    """
    *lead, heads, q_len, _ = (1, *query.shape)
    if q_len != 1 or query.dim() < 3 or not query.dim() == key.dim() == value.dim():
        return False
    if key.shape[:-2] != value.shape[:-2] or list(key.shape[:-3]) != lead[1:]:
        return False
    kv_heads = key.shape[-3]
    if kv_heads == 0 or heads % kv_heads or query.numel() == 0:
        return False
    shared_mask = attn_mask is None or attn_mask.dim() <= 2 or attn_mask.shape[-3] == 1
    return shared_mask and (valid_lens is None or (valid_lens.dim() == 1 and query.dim() > 3))


def check_lead(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that query, key and value have the same leading sizes.

    Raises:
        ShapeError: they differ.
    """
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        leads = {n: tuple(t.shape[:-2]) for n, t in zip("qkv", (query, key, value), strict=True)}
        raise ShapeError(
            f"leading sizes differ: query {leads['q']}, key {leads['k']}, value {leads['v']}; "
            "expand them, or set enable_gqa=True if the key's heads divide the query's."
        )


def check_output(
    actual: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    *,
    grouped: bool,
) -> None:
    """Check that an output, which may be on another device, has the form of these inputs'.

    Raises:
        DtypeError, ShapeError, DeviceError, MaskError: one does not fit the others.
    """
    check_inputs(query, key, value)
    if not isinstance(actual, Tensor):
        raise DtypeError(f"actual is a {type(actual).__name__}, but should be a torch.Tensor.")
    if not actual.is_floating_point() or actual.layout != torch.strided:
        raise DtypeError(
            f"actual is {actual.dtype}, {actual.layout}, but should be floating-point and dense."
        )
    if any(tensor is not None and tensor.is_meta for tensor in (actual, query, attn_mask)):
        raise DeviceError("a tensor on the device meta has no values to compare.")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"query has {query.shape[-1]} features, and key {key.shape[-1]}.")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        none = query[..., :0, :], key[..., :0, :], value[..., :0, :]  # to repeat costs nothing
        heads = (none[0], *expand_heads(*none)) if grouped else none
        try:
            torch.broadcast_shapes(*(t.shape[:-2] for t in heads))  # type: ignore[no-untyped-call]
        except RuntimeError:
            check_lead(query, key, value)
    if attn_mask is not None:
        broadcast_mask(attn_mask, (*query.shape[:-1], key.shape[-2]))
    wanted = (*query.shape[:-1], value.shape[-1])
    if actual.shape != wanted:
        raise ShapeError(
            f"actual has shape {tuple(actual.shape)}, but attention of these inputs has {wanted}; "
            "a tensor of (B, L, H, E) is transposed by .transpose(1, 2) first."
        )
