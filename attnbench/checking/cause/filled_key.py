"""Whether a hidden key counts as one with a score that is a number, and not -inf."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn

from attnbench.checking.cause.score_answers import agrees
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


def is_filled_alike(subject: Subject, module: nn.Module, inputs: Inputs) -> bool:
    """Whether the last key, which is hidden, counts as one whose score is the same in all rows.

    The outputs with it once, and twice, then tell its weight in each row, and so its value, which
    is the same in all rows.
    """
    *_, q_len, _ = inputs.query.shape
    last = inputs.key.shape[-2] - 1

    def output(count: int) -> Tensor:
        places = torch.tensor([*range(last), *[last] * count])
        key, value = inputs.key[..., places, :], inputs.value[..., places, :]
        mask = inputs.attn_mask
        mask = mask if mask is None else mask[..., places].expand(q_len, -1)
        return subject.output(module, inputs.replace(key=key, value=value, attn_mask=mask))

    with contextlib.suppress(Exception, SystemExit):  # it may not take as many keys
        none, once, twice = (output(count) for count in range(3))
        one, two = once - none, twice - none
        ratio = (two * one).sum(-1, keepdim=True) / one.square().sum(-1, keepdim=True)
        weight = (2 - ratio) / ratio
        value = none + one / weight
        same = agrees(none + one * ratio, twice) and agrees(value, value[..., :1, :])
        return same and bool(((weight > 0) & (weight < 1)).all())
    return False
