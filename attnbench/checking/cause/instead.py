"""Computes in another dtype what code asks to compute in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Instead(TorchFunctionMode):
    """A context in which ``dtype``, where code names it, is another one.

    Args:
        dtype: bfloat16 or float16.
        other: the dtype in its place.
    """

    def __init__(self, dtype: torch.dtype, other: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.other = dtype, other
        self.methods = {torch.bfloat16: Tensor.bfloat16, torch.float16: Tensor.half}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is self.methods[self.dtype]:
            return args[0].to(self.other)

        def replaced(given: Iterable[Any]) -> list[Any]:
            return [self.other if one is self.dtype else one for one in given]

        kwargs = dict(zip(kwargs or {}, replaced((kwargs or {}).values()), strict=True))
        return function(*replaced(args), **kwargs)
