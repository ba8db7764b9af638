"""Weights of a subject that does not return them, shown by the identity as value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import UsageError
from attnbench.specs import MechanismSpec
from attnbench.subject.tensors import Inputs

Subject = Any
"""An :class:`attnbench.Subject`, whose weights these are."""

_LARGEST = 2**20
"""Weights of one call, over all of its blocks."""


def shown_weights(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The output for the identity as value, in blocks as wide as the value was if need be.

    Where leading sizes may be any, one call has many blocks.
    """
    width, kv_len = inputs.value.shape[-1], inputs.key.shape[-2]
    eye = torch.eye(kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
    if subject.kind == "kernel":
        value = eye.expand(*inputs.key.shape[:-1], kv_len)
        with contextlib.suppress(UsageError):  # it refuses a value this wide
            found: Tensor = subject.output(module, inputs.replace(value=value))
            return found
    count = -(-kv_len // width)
    padded = nn.functional.pad(eye, (0, count * width - kv_len))
    blocks = torch.split(padded, width, -1)
    shown: list[Tensor] = []
    for some in _together(blocks, inputs, _stackable(subject, inputs)):
        output = subject.output(module, _stacked(inputs, some))
        shown += output.chunk(len(some)) if len(some) > 1 else [output]
    return torch.cat(shown, -1)[..., :kv_len]


def _stackable(subject: Subject, inputs: Inputs) -> bool:
    """Whether its first leading size may be another, and its items know nothing of each other.

    An adapter compiles, or its library does, for each size anew.
    """
    plain = type(subject.spec) is MechanismSpec and not subject.conventions.per_head
    by_head = inputs.enable_gqa or inputs.sinks is not None or inputs.alibi_slopes is not None
    return plain and inputs.query.dim() > 2 and not by_head


def _together(
    blocks: Sequence[Tensor], inputs: Inputs, stackable: bool
) -> Iterator[Sequence[Tensor]]:
    """The blocks of each call."""
    each = math.prod(inputs.query.shape[:-1]) * inputs.key.shape[-2]
    most = max(1, _LARGEST // max(1, each)) if stackable else 1
    for start in range(0, len(blocks), most):
        yield blocks[start : start + most]


def _stacked(inputs: Inputs, blocks: Sequence[Tensor]) -> Inputs:
    """The inputs once for each block, along the first leading size, with the blocks as value."""
    lead, count = inputs.key.shape[:-2], len(blocks)
    value = [block.expand(*lead, *block.shape) for block in blocks]
    if count == 1:
        return inputs.replace(value=value[0])

    def again(tensor: Tensor) -> Tensor:
        return tensor.expand(count, *tensor.shape).flatten(0, 1)

    mask, lens = inputs.attn_mask, inputs.valid_lens
    if mask is not None and mask.dim() == len(lead) + 2 and mask.shape[0] == lead[0]:
        mask = again(mask)
    return inputs.replace(
        query=again(inputs.query),
        key=again(inputs.key),
        value=torch.cat(value),
        attn_mask=mask,
        valid_lens=None if lens is None else again(lens),
    )
