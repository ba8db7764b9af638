"""Weights as the identity in place of the value shows them, where a subject hands none back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnbench.errors import UsageError
from attnbench.subject.tensors import Inputs

if TYPE_CHECKING:
    from attnbench.subject.subject import Subject

__all__ = ["shown_weights"]


def shown_weights(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The output for the identity as value, in blocks as wide as the value was if need be."""
    width, kv_len = inputs.value.shape[-1], inputs.key.shape[-2]
    eye = torch.eye(kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
    if subject.kind == "kernel":
        value = eye.expand(*inputs.key.shape[:-1], kv_len)
        with contextlib.suppress(UsageError):  # it says that it cannot run so wide a value
            return subject.output(module, inputs.replace(value=value))
    blocks = []
    for start in range(0, kv_len, width):
        block = nn.functional.pad(
            eye[:, start : start + width], (0, max(0, start + width - kv_len))
        )
        value = block.expand(*inputs.key.shape[:-2], kv_len, width)
        blocks.append(subject.output(module, inputs.replace(value=value)))
    return torch.cat(blocks, -1)[..., :kv_len]
