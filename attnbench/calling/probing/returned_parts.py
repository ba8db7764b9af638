"""What comes with an output: weights before or after dropout, or a log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnbench.calling.probing.probed_calls import BATCH, HEADS, Answer, Calls
from attnbench.calling.results import is_plain

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
        yield from (part.detach() for part in result[1:] if is_plain(part))


_SUMS = {
    (BATCH, HEADS, 3): "(B, H, L)",
    (BATCH, 3, HEADS): "(B, L, H)",
    (BATCH, HEADS, 3, 1): "(B, H, L, 1)",
    (BATCH * HEADS, 3): "(B, L)",
}
"""Shapes of a log-sum-exp of 3 queries."""


def _sums(calls: Calls, **given: Any) -> Tensor | None:
    """The log-sum-exp that comes with the output, where all scores are 0."""
    query, key, value = calls.tensors()
    parts = _more(calls, [query * 0, key, value], **given)
    return next((part for part in parts if part.shape in _SUMS), None)


def returned_lse(calls: Calls) -> Answer:
    """The base of a log-sum-exp, and its shape: of S scores of 0 it is log(S)."""
    found = _sums(calls)
    if found is None:
        return calls.not_taken("nothing of its shape comes with the output")
    shape = _SUMS[tuple(found.shape)]
    for base, expected in (("e", math.log(5)), ("2", math.log2(5))):
        if torch.allclose(found.double(), torch.tensor(expected).double(), 1e-4):
            return calls.inferred(base, f"5 scores of 0; its shape is {shape}")
    return calls.ambiguous(f"{shape}, but of 5 scores of 0 neither ln 5 nor log2 5")


def empty_lse(calls: Calls) -> Answer:
    """The log-sum-exp of a row without keys."""
    if calls.hide is None or calls.answers["lse_base"].status != "inferred":
        return calls.not_taken("there is no log-sum-exp, or no mask is known to hide")
    allowed = torch.arange(3)[:, None].expand(3, 5) < 2
    found = _sums(calls, **calls.hide(allowed))
    if found is None:
        return calls.not_taken(f"raises {calls.raised}")
    last = found.movedim(-1 if found.shape[-1] == 3 else 1 if found.shape[1] == 3 else 2, 0)[2]
    values = {repr(value) for value in last.flatten().tolist()}
    if len(values) != 1:
        return calls.ambiguous("another one for each row")
    return calls.inferred(float(values.pop()), "the last of 3 rows")


def returned_weights(calls: Calls) -> Answer:
    """Whether the weights that come with an output are those before dropout."""
    tensors = calls.tensors()
    shapes = ((BATCH, HEADS, 3, 5), (BATCH * HEADS, 3, 5))
    plain = [part for part in _more(calls, tensors) if part.shape in shapes]
    if not plain:
        return calls.not_taken("nothing of their shape comes with the output")
    if "dropout_p" not in calls.named:
        return calls.ambiguous("they come with the output; nothing drops")
    calls.training = True
    dropped = [part for part in _more(calls, tensors, dropout_p=0.5) if part.shape in shapes]
    calls.training = False
    pooled = calls.output(tensors, dropout_p=0.5)
    if not dropped or pooled is None:
        return calls.ambiguous(f"with dropout_p=0.5 none come ({calls.raised})")
    if torch.allclose(plain[0], dropped[0]):
        return calls.inferred("before dropout", "dropout_p=0.5 leaves them alone")
    return calls.inferred("after dropout", "dropout_p=0.5 changes them")
