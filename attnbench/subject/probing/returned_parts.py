"""What comes with an output: weights before or after dropout, or a log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnbench.subject.probing.probed_calls import BATCH, HEADS, Answer, Calls

_ASKED = (
    *("return_lse", "return_softmax_lse", "return_weights", "need_weights"),
    *("return_attention_scores", "return_attn_probs"),
)


def _more(calls: Calls, tensors: list[Tensor], **given: Any) -> Iterator[Tensor]:
    for name in (one for one in _ASKED if one in calls.names):
        yield from _parts(calls.result(tensors, **{name: True}, **given))
    yield from _parts(calls.result(tensors, **given))


def _parts(result: Any) -> Iterator[Tensor]:
    if isinstance(result, tuple | list):
        yield from (part.detach() for part in result[1:] if isinstance(part, Tensor))


def returned_lse(calls: Calls) -> Answer:
    """The base and shape of a log-sum-exp: of S scores of 0 it is log(S)."""
    name = "log-sum-exp"
    query, key, value = calls.tensors()
    shapes = {
        (BATCH, HEADS, 3): "(B, H, L)",
        (BATCH, 3, HEADS): "(B, L, H)",
        (BATCH, HEADS, 3, 1): "(B, H, L, 1)",
        (BATCH * HEADS, 3): "(B, L)",
    }
    found = [part for part in _more(calls, [query * 0, key, value]) if part.shape in shapes]
    if not found:
        return Answer.not_taken(name, "nothing of its shape comes with the output")
    shape = shapes[tuple(found[0].shape)]
    for base, expected in (("e", math.log(5)), ("2", math.log2(5))):
        if torch.allclose(found[0].double(), torch.tensor(expected).double(), 1e-4):
            return Answer.inferred(name, f"base {base}, {shape}", "5 scores of 0")
    return Answer.ambiguous(name, f"{shape}, but of 5 scores of 0 neither ln 5 nor log2 5")


def returned_weights(calls: Calls) -> Answer:
    """Whether the weights that come with an output are those before dropout."""
    name, tensors = "returned weights", calls.tensors()
    shapes = ((BATCH, HEADS, 3, 5), (BATCH * HEADS, 3, 5))
    plain = [part for part in _more(calls, tensors) if part.shape in shapes]
    if not plain:
        return Answer.not_taken(name, "nothing of their shape comes with the output")
    if "dropout_p" not in calls.named:
        return Answer.ambiguous(name, "they come with the output; nothing drops")
    calls.training = True
    dropped = [part for part in _more(calls, tensors, dropout_p=0.5) if part.shape in shapes]
    calls.training = False
    pooled = calls.output(tensors, dropout_p=0.5)
    if not dropped or pooled is None:
        return Answer.ambiguous(name, f"with dropout_p=0.5 none come ({calls.raised})")
    if torch.allclose(plain[0], dropped[0]):
        return Answer.inferred(name, "before dropout", "dropout_p=0.5 leaves them alone")
    return Answer.inferred(name, "after dropout", "dropout_p=0.5 changes them")
