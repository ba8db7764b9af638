"""What is wrong with one call, where no known mistake gives its output.

An option is to blame if the call without it is right. Otherwise the weights tell, which the
identity as value shows: whether other keys are seen, whether rows are scaled, or which scores
differ, and how.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench.oracle.textbook import Stages, stages_of, textbook_output
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_MASKS = ("attn_mask", "valid_lens", "is_causal")
_OPTIONS = ("scale", "softcap", "sinks", "alibi_slopes", "window_size", *_MASKS)
_NEAR = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Allowed error of a right output or weight by dtype, and the least weight that counts."""

_HALF = 4e-2
"""That of half types, in which nothing is said of what is less wrong."""


def deviation(subject: Subject, module: nn.Module, inputs: Inputs) -> str | None:
    """The name of what is wrong at a call whose output is wrong; ``None`` if nothing tells."""
    stages = stages_of(inputs)
    if inputs.dropout_p or not stages.scores.numel():
        return None
    if float((stages.scores + stages.bias).abs().max()) > 20:
        return None
    output, near = subject.output(module, inputs).cpu().double(), _near(inputs)
    if _agree(output, stages.output, near):
        return None  # but for rounding
    blamed = _blamed(subject, module, inputs)
    if len(blamed) > 1:
        return "masks_combined_wrongly" if {*blamed} <= {*_MASKS} else "options_combined_wrongly"
    if blamed and blamed[0] not in _MASKS:
        return f"{blamed[0]}_applied_otherwise"
    shown = subject.weights(module, inputs)
    if shown is None or shown.shape != stages.weights.shape or not bool(shown.isfinite().all()):
        return None
    shown = shown.detach().cpu().double()
    if not _agree(shown @ stages.finite_value, output, near):  # or else another head's value too
        return "values_changed" if _agree(shown, stages.weights, near) else None
    name = _Weights(inputs, stages, shown).deviation()
    is_bias = bool(blamed) and inputs.attn_mask is not None and inputs.attn_mask.is_floating_point()
    return "bias_changed" if is_bias and name and name.startswith("scores") else name


def _blamed(subject: Subject, module: nn.Module, inputs: Inputs) -> list[str]:
    """The options without which the call is right."""
    off = {name: False if name == "is_causal" else None for name in _given(inputs)}
    others = {name: inputs.replace(**{name: value}) for name, value in off.items()}
    if inputs.enable_gqa:
        count = inputs.query.shape[-3] // inputs.key.shape[-3]
        key, value = (t.repeat_interleave(count, -3) for t in (inputs.key, inputs.value))
        others["enable_gqa"] = inputs.replace(key=key, value=value, enable_gqa=False)
    return [name for name, other in others.items() if _is_right(subject, module, other)]


def _given(inputs: Inputs) -> list[str]:
    """The options that a call is given."""
    values = {name: getattr(inputs, name) for name in _OPTIONS}
    return [name for name, value in values.items() if value is not None and value is not False]


def _is_right(subject: Subject, module: nn.Module, inputs: Inputs) -> bool:
    output, expected = subject.output(module, inputs).cpu().double(), textbook_output(inputs)
    return output.shape == expected.shape and _agree(output, expected, _near(inputs))


def _near(inputs: Inputs) -> float:
    return _NEAR.get(inputs.query.dtype, _HALF)


def _agree(got: Tensor, expected: Tensor, near: float) -> bool:
    return bool(((got - expected).abs() <= near * expected.abs().max()).all())


@dataclass(frozen=True)
class _Weights:
    """The weights of a call as they are shown, beside those of the textbook."""

    inputs: Inputs
    stages: Stages
    shown: Tensor

    def deviation(self) -> str | None:
        expected, allowed, near = self.stages.weights, self.stages.allowed, _near(self.inputs)
        is_wide = near < _HALF
        if bool((self.shown < -near).any()):
            return None
        extra = (self.shown > near) & ~allowed & allowed.any(-1, keepdim=True)
        lost = (self.shown < 1e-9) & (expected > near)
        if bool((extra | lost).any()):
            return self._other_keys(extra, lost)
        told = (expected > near) & (self.shown > 0)
        gaps = (self.shown / expected).log().masked_fill(~told, math.nan) / (10 * near)
        if _is_small(gaps - gaps.nanmean(-1, keepdim=True)):
            sums = self.shown.sum(-1), expected.sum(-1)
            return "rows_scaled" if is_wide and not _agree(*sums, near) else None
        return next((name for name, fits in _KINDS.items() if fits(self, gaps)), "scores_changed")

    def _other_keys(self, extra: Tensor, lost: Tensor) -> str | None:
        """The part that does not leave the keys that it should."""
        given = [name for name in _given(self.inputs) if name in (*_MASKS, "window_size")]
        if bool(lost.any()) and not given:
            return "keys_unread"
        if given == ["is_causal"]:
            return "is_causal_applied_otherwise"
        if given not in (["attn_mask"], ["valid_lens"]):
            return None
        if bool(extra.any()) and bool(lost.any()):
            return "mask_laid_elsewhere"
        return "hidden_keys_seen" if bool(extra.any()) else "keys_hidden"


def _is_small(gaps: Tensor) -> bool:
    """Whether gaps, in units of what rounding explains, are 0; NaN tells nothing."""
    return bool((gaps.isnan() | (gaps.abs() <= 1)).all())


def _is_constant(gaps: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether gaps are the same along some axes."""
    return _is_small(gaps - gaps.nanmean(axes, keepdim=True))


def _by_score(weights: _Weights, gaps: Tensor) -> bool:
    """Whether the gaps are multiples of the scores, by one factor for each head."""
    terms = weights.stages.scores.masked_fill(gaps.isnan(), math.nan)
    terms = terms - terms.nanmean(-1, keepdim=True)
    gaps = gaps - gaps.nanmean(-1, keepdim=True)
    squares = terms.square().nansum((-2, -1), keepdim=True)
    factor = (terms * gaps).nansum((-2, -1), keepdim=True) / squares.clamp_min(1e-12)
    return _is_small(gaps - factor * terms)


def _by_key(weights: _Weights, gaps: Tensor) -> bool:
    """Whether a key's number alone counts."""
    return gaps.shape[-2] > 1 and _is_constant(gaps.diff(dim=-1), (*range(gaps.dim() - 1),))


def _by_distance(weights: _Weights, gaps: Tensor) -> bool:
    """Whether the distance of query and key alone counts."""
    steps = gaps.diff(dim=-1)
    leading = (*range(gaps.dim() - 2),)
    same = _is_small(steps[..., 1:, 1:] - steps[..., :-1, :-1])
    return min(steps.shape[-2:]) > 1 and same and (not leading or _is_constant(steps, leading))


_KINDS: dict[str, Callable[[_Weights, Tensor], bool]] = {
    "scores_scaled": _by_score,
    "scores_by_key": _by_key,
    "scores_by_distance": _by_distance,
}
