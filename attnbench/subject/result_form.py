"""The form of a subject's result: type, shape, dtype and device according to the contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.errors import DeviceError, DtypeError, ShapeError
from attnbench.subject.tensors import Inputs


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
