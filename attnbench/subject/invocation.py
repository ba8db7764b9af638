"""The call of a mechanism, accepted options by keyword, others as a mask, and its result."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import DeviceError, DtypeError, RefusalError, ShapeError
from attnbench.specs.conventions import Conventions
from attnbench.subject.tensors import Inputs

_PASSED_ON = (
    "window_size",
    "softcap",
    "sinks",
    "alibi_slopes",
    "scale",
    "k_scale",
    "v_scale",
    "head_offset",
)


def arguments(inputs: Inputs, accepts: Collection[str], conventions: Conventions) -> dict[str, Any]:
    """The keyword arguments of a mechanism's ``forward`` for these inputs.

    Args:
        inputs: inputs of the call; query, key and value are passed by position.
        accepts: ``accepts`` of its spec.
        conventions: conventions of its spec, which say what masks it takes.

    Raises:
        RefusalError: the inputs need something that the mechanism does not take.
    """
    forms = conventions.masks
    keywords: dict[str, Any] = {}
    rest = inputs
    if inputs.is_causal or conventions.causal == "always":
        _take_causality(inputs, conventions)
        if "is_causal" in accepts:
            keywords["is_causal"] = True
        if "is_causal" in accepts or conventions.causal == "always":
            rest = rest.replace(is_causal=False, causal="bottom_right")
    if rest.valid_lens is not None and "valid_lens" in accepts and "lengths" in forms:
        keywords["valid_lens"] = rest.valid_lens
        rest = rest.replace(valid_lens=None)
    given = [name for name in _PASSED_ON if getattr(inputs, name) is not None]
    missing = [name for name in given if name not in accepts and name != "window_size"]
    if missing:
        raise RefusalError(f"does not accept {missing[0]}")
    taken = [name for name in given if name in accepts]  # a window that is not becomes a mask
    keywords.update((name, getattr(inputs, name)) for name in taken)
    rest = rest.replace(**dict.fromkeys(taken))
    if conventions.empty_rows == "refused" and not bool(inputs.allowed.any(-1).all()):
        raise RefusalError("rows without keys are refused (convention empty_rows)")
    mask = rest.attn_mask
    if rest.is_causal or rest.valid_lens is not None or rest.window_size is not None:
        mask = rest.mask.as_tensor()
    if mask is not None:
        mask = _in_form(mask, conventions, inputs.query.dtype)
    return {**keywords, "attn_mask": mask, **_options(inputs, accepts)}


def _options(inputs: Inputs, accepts: Collection[str]) -> dict[str, Any]:
    """The options of the inputs that are set."""
    given = {name: getattr(inputs, name) for name in ("dropout_p", "enable_gqa")}
    given = {name: option for name, option in given.items() if option}
    refused = [name for name in given if name not in accepts]
    if refused:
        raise RefusalError(f"does not accept {refused[0]}")
    return given


_BY_KEY = ("key_row", "key_padding", "padding")
"""Kinds of mask with a single row for all queries."""


def refused(case: Case, accepts: Collection[str], conventions: Conventions) -> str | None:
    """The reason, by the fields of its spec, why a mechanism cannot run a case; or ``None``."""
    forms, kind = conventions.masks, case.mask
    if conventions.mask_value > -_LEAST and case.regime in _SCORES_FAR_APART and kind != "none":
        return f"{conventions.mask_value:g} for -inf hides nothing from scores as far apart"
    if kind == "none":
        return None
    if kind.startswith("causal") and ("is_causal" in accepts or conventions.causal == "always"):
        if kind == "causal":
            return None
        kind = "padding"
    if kind == "empty_row" and conventions.empty_rows == "refused":
        return "rows without keys are refused (convention empty_rows)"
    if kind in ("padding", "lengths_2d") and "valid_lens" in accepts and "lengths" in forms:
        return None
    if not set(forms) & {"boolean", "floating"}:
        return "takes no masks" if "lengths" not in forms else "takes lengths only"
    if "keys" in forms and kind not in _BY_KEY:
        return "takes one row of a mask for all queries only"
    if kind in ("bias", "floating") and "floating" not in forms:
        return "takes no floating masks"
    return None


_SCORES_FAR_APART = ("huge", "near_overflow", "opposed", "far")
_LEAST = 1e6
"""Scores of some regimes may reach a finite stand-in for -inf that is above minus this."""


def _take_causality(inputs: Inputs, conventions: Conventions) -> None:
    q_len, kv_len = inputs.query.shape[-2], inputs.key.shape[-2]
    if conventions.causal == "square" and q_len != kv_len:
        raise RefusalError(f"is_causal is for L = S only, not {q_len} and {kv_len}")
    if conventions.causal == "always" and q_len > kv_len:
        raise RefusalError(f"it is always causal, and {q_len} queries have {kv_len} keys only")


def _in_form(mask: Tensor, conventions: Conventions, dtype: torch.dtype) -> Tensor:
    """Convert a mask to a form that the mechanism takes; a floating one gets this dtype."""
    forms = conventions.masks
    if not set(forms) & {"boolean", "floating"}:
        raise RefusalError("takes no masks" if "lengths" not in forms else "takes lengths only")
    if "keys" in forms and mask.shape[-2] != 1:
        first = mask[..., :1, :]
        if not torch.equal(first.expand(mask.shape), mask):
            raise RefusalError("takes one row of a mask for all queries only")
        mask = first
    if mask.dtype == torch.bool:
        if "boolean" in forms:
            return mask
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        mask = zeros.masked_fill(~mask, -math.inf)
    elif "floating" not in forms:
        raise RefusalError("takes no floating masks")
    if math.isinf(conventions.mask_value):
        return mask
    low = max(conventions.mask_value, torch.finfo(mask.dtype).min)
    return mask.masked_fill(mask == -math.inf, low)


def held(result: Any, name: str, inputs: Inputs, width: int, what: str = "output") -> Tensor:
    """Check an output or weights against the contract, and return it.

    Args:
        result: the result.
        name: name of the subject.
        inputs: inputs of the call.
        width: expected size of the last dimension.
        what: name of the result for messages.

    Raises:
        DtypeError, ShapeError, DeviceError: the result violates the contract.
    """
    query = inputs.query
    if not isinstance(result, Tensor):
        raise DtypeError(
            f"{name} returned {type(result).__name__} for its {what}, but should return a tensor."
        )
    wanted = (*query.shape[:-1], width)
    if tuple(result.shape) != wanted:
        raise ShapeError(
            f"{name} returned {what} of shape {tuple(result.shape)} for query "
            f"{tuple(query.shape)}, key {tuple(inputs.key.shape)} and value "
            f"{tuple(inputs.value.shape)}, but should return {wanted}.",
        )
    # under autocast another dtype is expected
    free = what != "output" or torch.is_autocast_enabled(query.device.type)
    if result.dtype != query.dtype and not free:
        raise DtypeError(
            f"{name} returned {what} in {result.dtype}, but should return the query's "
            f"{query.dtype}.",
        )
    if result.device != query.device:
        raise DeviceError(
            f"{name} returned {what} on {result.device}, but should return it on the query's "
            f"{query.device}."
        )
    return result
