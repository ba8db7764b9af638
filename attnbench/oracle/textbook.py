"""Textbook attention in float64, stage by stage: softmax(q·k·scale) v with every option.

It is the reference for the options that a mechanism accepts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.oracle.references import Reference, allowed_and_bias
from attnbench.registry.address import Address
from attnbench.specs import ScoringSpec
from attnbench.subject.scoring_subject import ScoringSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_TOLERANCE = 1e-3


class ScaledDot(nn.Module):
    """The scores ``q·k`` times a scale, ``1/√E`` by default."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores ``(..., L, S)``."""
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        return (query * scale) @ key.mT

    def __deepcopy__(self, memo: object) -> ScaledDot:
        return self  # nothing changes it, and references copy their modules


TEXTBOOK = ScoringSubject(
    "textbook",
    ScoringSpec(name="textbook", make=lambda query, key: ScaledDot(), equal_sizes=True),
    Address("textbook"),
)
"""Scaled dot-product attention as a subject that shares no code with any plugin's."""


@dataclass(frozen=True)
class Stages:
    """The stages of attention from its inputs to its output, all on the CPU.

    Args:
        scores: ``(*lead, L, S)``, scaled, without bias.
        value: ``(*lead, S, Ev)``.
        allowed: ``(*lead, L, S)``, boolean: which keys each query may attend to.
        bias: ``(*lead, L, S)``, added to the scores.
        sinks: ``(H, 1, 1)``, score of an extra key without a value; ``None`` for none.
    """

    scores: Tensor
    value: Tensor
    allowed: Tensor
    bias: Tensor
    sinks: Tensor | None = None

    @property
    def masked_scores(self) -> Tensor:
        """``(*lead, L, S)``: the scores with their bias; -inf where a key is not allowed."""
        return (self.scores + self.bias).masked_fill(~self.allowed, -math.inf)

    @property
    def weights(self) -> Tensor:
        """``(*lead, L, S)``: softmax over the allowed keys; zeros in a row without any."""
        scores = self.masked_scores
        if self.sinks is None:  # a row of -inf alone would make NaN, and NaN gradients
            scores = scores.masked_fill(~self.allowed.any(-1, keepdim=True), 0.0)
            return scores.softmax(-1).masked_fill(~self.allowed, 0.0)
        scores = torch.cat([scores, self.sinks.expand(*scores.shape[:-1], 1)], -1)
        return scores.softmax(-1)[..., :-1]

    @property
    def log_sums(self) -> Tensor:
        """``(*lead, L)``: log-sum-exp of the scores of allowed keys; -inf in a row without any."""
        scores = self.masked_scores
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.expand(*scores.shape[:-1], 1)], -1)
        return scores.logsumexp(-1)

    @property
    def output(self) -> Tensor:
        """The output, ``(*lead, L, Ev)``."""
        return self.weights @ self.finite_value

    @property
    def finite_value(self) -> Tensor:
        """The value with NaN and infinity, which occur only in hidden slots, replaced by zeros."""
        return torch.where(self.value.isfinite(), self.value, 0.0)


def stages_of(inputs: Inputs) -> Stages:
    """Compute the stages of attention, each option with its textbook meaning.

    ``scale`` s, of either sign, gives the scores s·q·k. ``softcap`` c replaces a score x by
    c·tanh(x / c), before any mask or bias. ``alibi_slopes`` m subtract m·|i + S - L - j| from the
    score of query i and key j. ``window_size`` (b, a) allows the keys i + S - L - b to
    i + S - L + a. ``sinks`` are the scores of one extra key per head, which has no value.
    ``k_scale`` and ``v_scale`` multiply key and value. Grouped heads are repeated in place.
    """
    inputs = restored(inputs)
    query, key, value = inputs.query, inputs.key, inputs.value
    if inputs.enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, dim=-3) for t in (key, value))
    allowed, bias = allowed_and_bias(inputs.replace(key=key))
    scores = (query * scale_of(inputs)) @ torch.where(key.isfinite(), key, 0.0).mT
    if inputs.softcap is not None:
        scores = inputs.softcap * (scores / inputs.softcap).tanh()
    sinks = None if inputs.sinks is None else inputs.sinks.cpu().double()[..., None, None]
    return Stages(scores, value, allowed, bias, sinks)


def scale_of(inputs: Inputs) -> float:
    """The factor of q·k in the scores: the argument, or 1/√E."""
    return inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale


def restored(inputs: Inputs) -> Inputs:
    """The same inputs in float64 on the CPU, with stored keys and values times their scales."""
    query, key, value = (t.cpu().double() for t in (inputs.query, inputs.key, inputs.value))
    if inputs.k_scale is not None:
        key = key * inputs.k_scale.cpu().double()
    if inputs.v_scale is not None:
        value = value * inputs.v_scale.cpu().double()
    return inputs.replace(query=query, key=key, value=value, k_scale=None, v_scale=None)


def textbook_output(inputs: Inputs) -> Tensor:
    """The output ``(*lead, L, Ev)`` in float64 on the CPU; gradients reach the inputs."""
    return stages_of(inputs).output


def is_textbook(subject: Subject) -> bool:
    """Whether a mechanism without options computes scaled dot-product attention.

    This is decided by its reference or, if it declares none, by its own output.
    """
    if subject.kind != "mechanism":
        return False
    case = subject.legal(Case((2, 3), 4, 6, 8, 8, 8))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            module, inputs = subject.build(case)
            expected = textbook_output(inputs)
            reference = Reference(subject, module, inputs)
            if reference.has_scalar:
                rows = reference.rows()
                output, expected = reference.scalar(rows), reference.select(expected, rows)
            else:
                output = subject.output(module, inputs).cpu().double()
            return torch.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    except (Exception, SystemExit):  # the invariants report such errors
        return False
