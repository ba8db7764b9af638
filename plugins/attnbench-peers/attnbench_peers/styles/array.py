"""The adapter for libraries with arrays of their own, without torch's autograd."""

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


@renames
def array(
    function: Callable[..., Any],
    to: Callable[[Tensor], Any],
    back: Callable[[Any], Tensor],
    **fields: Any,
) -> MechanismSpec:
    """Make a spec of a function on another library's arrays, forward only.

    The function gets arrays ``(B, H, L, E)``, and those keywords of torch's fused attention that
    its signature has; in a boolean mask, True = may attend.

    Args:
        function: ``function(query, key, value, ...)`` on arrays.
        to: converts a tensor, on the CPU and without a graph, to an array.
        back: converts an array to a tensor.
        fields: fields of the spec, which override the adapter's; conventions and exemptions are
            added to its own.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    keywords = keywords_of(function) if callable(function) else None
    if keywords is None or len(keywords.names) < 3:
        raise StyleError(
            f"{function!r} cannot be called as array: it should take query, key and value; wrap it "
            "in a function that names them."
        )
    flags = ("is_causal", "scale", "enable_gqa")
    known = {
        **SCALED_DOT,
        "make": lambda *sizes: _Arrays(function, keywords, to, back),
        "accepts": tuple(flag for flag in flags if flag in keywords),
        "conventions": {
            "gradients": False,
            "hidden_slots": "finite",
            "causal": "top_left",
            **({} if "attn_mask" in keywords else {"masks": ()}),
        },
    }
    return adapted_spec("array", function, known, fields)


class _Arrays(nn.Module):
    """A function of arrays ``(B, H, L, E)``."""

    def __init__(
        self,
        function: Callable[..., Any],
        keywords: Any,
        to: Callable[[Tensor], Any],
        back: Callable[[Any], Tensor],
    ) -> None:
        super().__init__()
        self.function, self.keywords, self.to_array, self.back = function, keywords, to, back

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        enable_gqa: bool = False,
        **given: Any,
    ) -> Tensor:
        """The output ``(..., L, Ev)``."""
        lead = tuple(query.shape[:-2])
        tensors = [fold_heads(tensor, heads=enable_gqa) for tensor in (query, key, value)]
        if attn_mask is not None:
            shape = (*tensors[0].shape[:-1], key.shape[-2])
            mask = fold_mask_heads(attn_mask, lead, heads=enable_gqa).expand(shape)
            given["attn_mask"] = self.array(mask)
        if enable_gqa:
            given["enable_gqa"] = True
        masked = attn_mask is not None or bool(given.get("is_causal"))
        with refusals(getattr(self.function, "__name__", "callee"), masked=masked):
            found = self.function(*map(self.array, tensors), **self.keywords.spelt(given))
        return unfold_heads(self.back(found).to(query.device), lead)

    def array(self, tensor: Tensor) -> Any:
        """Convert a tensor to an array of the library that shares no memory with it."""
        with torch.no_grad():
            return self.to_array(tensor.detach().cpu().clone())
