"""The adapter for libraries with arrays of their own, without torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.calling.styles.callee import Callee, Maker, fold, fold_mask, spec_of, unfold
from attnbench.calling.styles.fitting import fitted
from attnbench.calling.styles.renaming import renames
from attnbench.calling.styles.scaled_dot_floats import SCALED_DOT
from attnbench.specs import MechanismSpec


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
    keywords = fitted(function, "sdpa")
    flags = ("is_causal", "scale", "enable_gqa")
    known = {
        **SCALED_DOT,
        "make": Maker(_Arrays, function, keywords, to=to, back=back),
        "accepts": tuple(flag for flag in flags if flag in keywords),
        "conventions": {
            "gradients": False,
            "hidden_slots": "finite",
            "causal": "top_left",
            **({} if "attn_mask" in keywords else {"masks": ()}),
        },
    }
    return spec_of("array", function, known, fields)


class _Arrays(Callee):
    """A function of arrays ``(B, H, L, E)``."""

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
        tensors = [fold(tensor, heads=enable_gqa) for tensor in (query, key, value)]
        if attn_mask is not None:
            shape = (*tensors[0].shape[:-1], key.shape[-2])
            mask = fold_mask(attn_mask, lead, heads=enable_gqa).expand(shape)
            given["attn_mask"] = self.array(mask)
        if enable_gqa:
            given["enable_gqa"] = True
        found = self.call(*map(self.array, tensors), **given)
        output: Tensor = self.settings["back"](found)
        return unfold(output.to(query.device), lead)

    def array(self, tensor: Tensor) -> Any:
        """Convert a tensor to an array of the library that shares no memory with it."""
        with torch.no_grad():
            return self.settings["to"](tensor.detach().cpu().clone())
