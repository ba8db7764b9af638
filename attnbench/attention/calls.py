"""Preparation of the arguments of a mechanism: checks, one mask, and harmless padding.

A mechanism projects or gathers before it scores, so padding must be made harmless first: the
gradient of a weight is 0 at a padded slot, and 0 times a NaN in its key would be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnbench._signing import MADE_FOR, ORIGIN
from attnbench.attention.arguments import check_inputs, check_lead
from attnbench.attention.masks import Mask, fold
from attnbench.errors import ShapeError, UsageError


@dataclass(frozen=True)
class Call:
    """The arguments of one call, checked, with harmless padding.

    Args:
        query: ``(..., L, Eq)``.
        key, value: ``(..., S, Ek)`` and ``(..., S, Ev)``, zero where hidden from every query.
        mask: attention mask, valid lengths and causality in one.
        is_causal: whether the mask is causality alone and leaves no row without keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    is_causal: bool

    def masking(self, unsqueezed: int | None = None) -> dict[str, Any]:
        """Mask and causality as keywords of ``attend``, with a dimension inserted for heads."""
        if self.is_causal:
            return {"is_causal": True}
        mask = self.mask.as_tensor()
        if mask is not None and unsqueezed is not None and mask.dim() >= -unsqueezed:
            mask = mask.unsqueeze(unsqueezed)
        return {"attn_mask": mask}

    def zero_empty_rows(self, output: Tensor) -> Tensor:
        """The output with zeros where the mask leaves a query no key."""
        empty = self.mask.empty_rows
        return output if empty is None else output.masked_fill(empty, 0.0)


def check_features(module: nn.Module, *tensors: Tensor) -> None:
    """Compare the features of query, key and perhaps value with those that a module was made for.

    Raises:
        ShapeError: a size differs.
    """
    sizes = tuple(tensor.shape[-1] for tensor in tensors)
    expected = tuple(getattr(module, MADE_FOR, sizes))[: len(sizes)]
    if sizes != expected:
        name = getattr(module, ORIGIN).partition("@")[0]
        names = ", ".join(("query_size", "key_size", "value_size")[: len(sizes)])
        raise ShapeError(f"{name} was made for {names} = {expected}, but got {sizes} features.")


def call_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    valid_lens: Tensor | None,
    is_causal: bool,
) -> Call:
    """A call of checked inputs; see :func:`prepare`."""
    check_lead(query, key, value)
    lead, q_len, kv_len = tuple(query.shape[:-2]), query.shape[-2], key.shape[-2]
    mask = fold(
        attn_mask,
        valid_lens,
        is_causal,
        lead=lead,
        q_len=q_len,
        kv_len=kv_len,
        device=query.device,
    )
    # causality alone goes to a kernel as a flag, unless it leaves rows without keys
    flag = is_causal and attn_mask is None and valid_lens is None and q_len <= kv_len
    hidden_keys = None if flag else mask.hidden_keys
    if hidden_keys is not None:
        key, value = key.masked_fill(hidden_keys, 0.0), value.masked_fill(hidden_keys, 0.0)
    return Call(query, key, value, mask, flag)


def prepare(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Call:
    """Check the arguments of a mechanism and make them harmless.

    Raises:
        ShapeError, DtypeError, DeviceError, MaskError, UsageError: an argument does not fit.
    """
    check_inputs(query, key, value)
    call = call_of(query, key, value, attn_mask, valid_lens, is_causal)
    check_features(module, query, key, value)
    if not 0.0 <= dropout_p < 1.0:
        raise UsageError(f"dropout_p = {dropout_p}, but should be in [0, 1).")
    return call
