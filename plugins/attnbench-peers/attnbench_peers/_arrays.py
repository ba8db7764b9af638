"""Functions of other libraries' arrays as functions of tensors, forward only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORWARD_ONLY = {"gradients": False, "hidden_slots": "finite", "masks": ("boolean",)}


def on_tensors(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function of NumPy arrays, called with tensors; what is no tensor is handed on."""

    def call(query: Tensor, *tensors: Any, **options: Any) -> Tensor:
        arrays = [_array(given) for given in (query, *tensors)]
        found = function(*arrays, **{name: _array(given) for name, given in options.items()})
        return torch.tensor(np.array(found)).to(query.dtype)

    return call


def _array(given: Any) -> Any:
    return given.detach().numpy() if isinstance(given, Tensor) else given
