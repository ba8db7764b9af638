"""The right answers: attention in float64, written by the judge's side and run in its process."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from attnbench.benchmark.agreement.attention_agreement import cut, ratio_of_errors
from attnbench.oracle.budget import Oracle
from attnbench.oracle.references import Reference
from attnbench.registry.address import Address
from attnbench.specs import ScoringSpec
from attnbench.subject.scoring_subject import ScoringSubject
from attnbench.subject.tensors import Inputs

_FURTHEST = 5
"""Rows of a whole output that are looked at closely."""


class _Dot(nn.Module):
    """The scores ``q·k`` times a scale, ``1/√E`` by default."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        return (query * scale) @ key.mT


_SPEC = ScoringSpec(name="right", make=lambda query_size, key_size: _Dot(), equal_sizes=True)
_RIGHT = ScoringSubject("right", _SPEC, Address("right"))


def right_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    causal: str = "bottom_right",
) -> Tensor:
    """The output ``(*lead, L, Ev)`` in float64, for the arguments of an attention function.

    Args:
        query, key, value: as of :class:`attnbench.subject.tensors.Inputs`.
        attn_mask, is_causal, scale, enable_gqa: as torch's fused attention takes them.
        causal: where causality ends when ``L != S``: ``"bottom_right"`` or ``"top_left"``.
    """
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    inputs = Inputs(query, key, value, attn_mask=attn_mask, is_causal=is_causal, causal=causal)
    return Reference(_RIGHT, _Dot(scale), inputs).output


def error_of_rows(inputs: Inputs, output: Tensor, item: int, rows: list[int]) -> float:
    """The largest error of some rows of one item, as a multiple of the allowed error.

    Args:
        inputs: inputs whose causality ends at the bottom right.
        output: ``(*lead, L, Ev)``, in any floating dtype.
        item: which of the leading places, counted through.
        rows: queries to look at.
    """
    oracle = Oracle(_RIGHT, _Dot(inputs.scale), cut(_RIGHT, inputs, item, rows))
    found = output.reshape(-1, *output.shape[-2:])[item, rows].double().unsqueeze(0)
    off = (found - oracle.output).abs()
    ratio = ratio_of_errors(off, oracle.budget())
    return ratio if ratio <= 1.0 else ratio_of_errors(off, oracle.budget(sure=True))


def error_of_all(
    inputs: Inputs, output: Tensor, looked_at: Sequence[tuple[int, list[int]]]
) -> float:
    """An error above what is allowed, or else the largest error.

    Rows of the whole output that are furthest off are looked at first, then the given ones.

    How much rounding explains differs widely between rows where softmax saturates, so the allowed
    error is computed for the rows in question only.
    """
    expected = right_output(
        inputs.query,
        inputs.key,
        inputs.value,
        inputs.attn_mask,
        is_causal=inputs.is_causal,
        scale=inputs.scale,
    )
    off = (output.double() - expected).abs().amax(-1).nan_to_num(math.inf, math.inf).flatten()
    q_len = output.shape[-2]
    furthest = [divmod(int(place), q_len) for place in off.topk(min(_FURTHEST, len(off))).indices]
    rows = [*((item, [row]) for item, row in furthest), *looked_at]
    worst = 0.0
    for item, some in rows:
        worst = max(worst, error_of_rows(inputs, output, item, some))
        if worst > 1.0:  # how much further others are off changes nothing, and takes seconds
            break
    return worst
