"""Whether a callee asks for causality itself: by ``is_causal``, or by a triangle that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.styles import OperationMode, nested_tensors
from attnbench_plugins.adapters.trials.small_calls import Calls


def asks_for_causality(calls: Calls) -> bool:
    """Whether a call of hidden states uses ``is_causal=True``, or a mask of earlier tokens.

    Such a mask has one value above its diagonal, and another elsewhere. One of later tokens beside
    it is of code that looks both ways.
    """
    tokens = calls.binding.tokens or calls.tensors()[0].shape[-2]
    watched = _Watched(tokens)
    with watched:
        calls()
    return watched.kinds in ({"earlier"}, {"is_causal"}, {"earlier", "is_causal"})


class _Watched(OperationMode):  # type: ignore[no-untyped-call]  # torch has not typed it
    """Notes the masks of causality among what operations take and give."""

    def __init__(self, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor this
        self.tokens, self.kinds = tokens, set[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        result = func(*args, **named)
        schema = getattr(func, "_schema", None)  # an operator that takes functions has none
        names = [argument.name for argument in schema.arguments] if schema else []
        if (dict(zip(names, args, strict=False)) | named).get("is_causal") is True:
            self.kinds.add("is_causal")
        for tensor in nested_tensors([args, named, result]):
            if tensor.shape[-2:] == (self.tokens, self.tokens) and tensor.numel():
                self.kinds |= _sides(tensor.flatten(0, -3)[0] if tensor.dim() > 2 else tensor)
        return result


def _sides(matrix: Tensor) -> set[str]:
    """Which tokens a matrix shows if it is a mask: earlier ones, or later ones."""
    one, places = matrix[0, 0], torch.ones_like(matrix, dtype=torch.bool)
    found = set()
    triangles = [("earlier", places.triu(1)), ("later", places.tril(-1))]
    for side, hidden in [*triangles, ("earlier", places.triu(2))]:  # and one that is off by one
        rest, other = matrix[~hidden], matrix[hidden]
        if bool((rest == one).all() & (other == other[0]).all() & (other[0] != one)):
            found.add(side)
    return found
