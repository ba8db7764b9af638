"""The adapter of the attention functions of transformers, which take the layer that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.results import output_and_more
from attnbench.calling.styles.callee import (
    Callee,
    Maker,
    fold,
    fold_mask,
    refusals,
    spec_of,
    unfold,
)
from attnbench.calling.styles.fitting import fitted
from attnbench.calling.styles.renaming import renames
from attnbench.calling.styles.scaled_dot_floats import SCALED_DOT
from attnbench.specs import MechanismSpec


@renames
def interface(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of an attention function of transformers: ``f(module, query, key, value, ...)``.

    The function gets ``(B, H, L, E)`` and, like all of that library, a floating ``attention_mask``
    with ``torch.finfo(dtype).min`` for hidden keys; it returns ``(B, L, H, E)`` and the weights.

    Args:
        function: one of the library's ``ALL_ATTENTION_FUNCTIONS``, or ``eager_attention_forward``.
        fields: fields of the spec, as for :func:`sdpa`.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    keywords = fitted(function, "interface")
    known = {
        **SCALED_DOT,
        "make": Maker(_Interface, function, keywords),
        "accepts": ("dropout_p", "scale", "enable_gqa"),
        "conventions": {
            "masks": ("floating",),
            "mask_value": torch.finfo(torch.float32).min,
            "empty_rows": "mean",
            "hidden_slots": "finite",
            "internal_dtype": "float32",  # of the softmax, for any input
        },
    }
    return spec_of("interface", function, known, fields)


class _Interface(Callee):
    """A function that takes the layer that calls it."""

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
        query, key, value = (fold(t, heads=enable_gqa) for t in (query, key, value))
        if attn_mask is not None:
            attn_mask = fold_mask(attn_mask, lead, heads=enable_gqa)
            attn_mask = attn_mask.reshape(*[1] * (4 - attn_mask.dim()), *attn_mask.shape)
        layer = self.layer(query.shape[1] // key.shape[1])
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        dropout_p = dropout_p if self.training else 0.0
        on_cpu = query.device.type == "cpu"
        with refusals(self.callee_name, masked=attn_mask is not None, on_cpu=on_cpu):
            found = self.callee(
                layer, query, key, value, attn_mask, scaling=scale, dropout=dropout_p
            )
        output, _ = output_and_more(found)
        return unfold(output.transpose(1, 2), lead)

    def layer(self, groups: int) -> nn.Module:
        """A layer with the attributes that such a function reads."""
        layer = nn.Module()
        layer.is_causal, layer.num_key_value_groups = False, groups  # type: ignore[assignment]
        layer.layer_idx = 0  # type: ignore[assignment]
        return layer.train(self.training)
