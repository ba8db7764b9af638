"""The adapter of the attention functions of transformers, which take the layer that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench.errors import StyleError
from attnbench.testing import (
    SCALED_DOT,
    adapted_spec,
    fold_heads,
    fold_mask_heads,
    keywords_of,
    refusals,
    renames,
    unfold_heads,
)

_FIRST = ("module", "query", "key", "value")


def misfit(function: Any) -> str | None:
    """Why a function is none of transformers' attention functions; ``None`` if it is one."""
    keywords = keywords_of(function) if callable(function) else None
    if keywords is None:
        return "nothing tells its arguments; wrap it in a function that names them"
    for place, name in enumerate(_FIRST):
        if keywords.names[place : place + 1] != (name,):
            return f"argument {place + 1} should be {name}"
    return None if "attention_mask" in keywords.names else "it has no argument attention_mask"


@renames
def interface(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of an attention function of transformers: ``f(module, query, key, value, ...)``.

    The function gets ``(B, H, L, E)`` and, like all of that library, a floating ``attention_mask``
    with ``torch.finfo(dtype).min`` for hidden keys; it returns ``(B, L, H, E)`` and the weights.

    Args:
        function: one of the library's ``ALL_ATTENTION_FUNCTIONS``, or ``eager_attention_forward``.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    if (reason := misfit(function)) is not None:
        name = getattr(function, "__name__", repr(function))
        raise StyleError(f"{name} cannot be called as interface: {reason}.")
    known = {
        **SCALED_DOT,
        "make": lambda *sizes: _Interface(function),
        "accepts": ("dropout_p", "scale", "enable_gqa"),
        "conventions": {
            "masks": ("floating",),
            "mask_value": torch.finfo(torch.float32).min,
            "empty_rows": "mean",
            "hidden_slots": "finite",
            "internal_dtype": "float32",  # of the softmax, for any input
        },
    }
    return adapted_spec("interface", function, known, fields)


class _Interface(nn.Module):
    """A function that takes the layer that calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        dropout_p: float = 0.0,
        enable_gqa: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """The output ``(..., L, Ev)``."""
        lead = tuple(query.shape[:-2])
        query, key, value = (fold_heads(t, heads=enable_gqa) for t in (query, key, value))
        if attn_mask is not None:
            attn_mask = fold_mask_heads(attn_mask, lead, heads=enable_gqa)
            attn_mask = attn_mask.reshape(*[1] * (4 - attn_mask.dim()), *attn_mask.shape)
        caller = nn.Module().train(self.training)
        vars(caller).update(
            is_causal=False, num_key_value_groups=query.shape[1] // key.shape[1], layer_idx=0
        )
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        dropout_p = dropout_p if self.training else 0.0
        name, on_cpu = getattr(self.function, "__name__", "it"), query.device.type == "cpu"
        with refusals(name, masked=attn_mask is not None, on_cpu=on_cpu):
            found = self.function(
                caller, query, key, value, attn_mask, scaling=scale, dropout=dropout_p
            )
        output = found[0] if isinstance(found, tuple | list) else found
        return unfold_heads(output.transpose(1, 2), lead)
