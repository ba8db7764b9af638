"""Mistakes of log-sum-exps and of dropout, where the output without dropout is right."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.oracle.textbook import Stages, is_textbook, scale_of, stages_of
from attnbench.subject.mechanism_subject import MechanismSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_NEAR = 1e-3
_CASES = (
    Case((2, 3), 4, 6, 8, 8, 5),
    Case((2, 3), 4, 6, 8, 8, 5, mask="boolean", seed=1),
    Case((2, 3), 4, 6, 8, 8, 5, mask="bias", seed=2),
)

OPTIONS: dict[str, object] = {"scale": 0.7, "softcap": 0.5, "window_size": (1, 1)}
"""Options that change the scores, or the keys that they are of, and so the log-sum-exp."""

_DROPPING = Case((), 3, 5, 4, 4, 10)
_CALLS, _SHARE = 1024, 0.3
_CHANCE = 0.05
"""Many times further from the share of weights that are dropped than chance takes it."""


def side_mistake(subject: Subject) -> str | None:
    """The mistake of a subject's log-sum-exps, or else of its dropout; ``None`` without one."""
    if not isinstance(subject, MechanismSubject) or not is_textbook(subject):
        return None
    return _log_sum_mistake(subject) or _dropout_mistake(subject)


def _log_sum_mistake(subject: MechanismSubject) -> str | None:
    """The one mistake that gives all wrong log-sum-exps of some calls whose output is right."""
    common: set[str] | None = None
    unit = math.log(2.0) if subject.conventions.lse_base == "2" else 1.0
    for case in map(subject.legal, _CASES) if "lse" in subject.spec.returns else ():
        if not subject.takes_mask(case.mask) or subject.unsupported(case) is not None:
            continue
        module, inputs = subject.build(case)
        for given in (inputs, *_with_options(subject, inputs)):
            output, found = subject.output_and_log_sums(module, given)
            stages, lse = stages_of(given), found.cpu().double() * unit
            if not _is_near(output.cpu().double(), stages.output):
                return None
            if not _is_near(lse, stages.log_sums):
                names = {name for name, other in _log_sums(given, stages) if _is_near(lse, other)}
                common = names if common is None else common & names
    if common and len(common) > 1:  # other masks are right, or not taken
        common.discard("log_sum_without_mask")
    return common.pop() if common and len(common) == 1 else None


def _with_options(subject: MechanismSubject, inputs: Inputs) -> Iterator[Inputs]:
    """The same call with one of the options each, none of which takes all keys from a row."""
    for name in sorted(OPTIONS.keys() & {*subject.accepts}) if inputs.attn_mask is None else ():
        yield inputs.replace(**{name: OPTIONS[name]})


def _log_sums(inputs: Inputs, stages: Stages) -> Iterator[tuple[str, Tensor]]:
    """The log-sum-exps that mistakes give."""
    lse, scale = stages.log_sums, scale_of(inputs)
    allowed, scores = stages.allowed, stages.scores
    top = stages.masked_scores.amax(-1)
    rest = lse - top
    yield "log_sum_without_maximum", rest
    yield "log_sum_with_maximum_twice", lse + top
    yield "log_sum_is_maximum", top
    yield "log_sum_is_sum", lse.exp()
    yield "log_sum_is_shifted_sum", rest.exp()
    yield "log_sum_of_sum_without_logarithm", top + rest.exp()
    yield "log_sum_negated", -lse
    yield "log_sum_scaled", lse * scale
    yield "log_sum_of_mean", lse - allowed.sum(-1).log()
    for factor in (math.log(2.0), 1 / math.log(2.0)):
        yield "log_sum_of_two_bases", top * factor + rest
        yield "log_sum_of_two_bases", top + rest * factor
    yield "log_sum_of_smoothed_keys", lse - scores.mean(-1)
    if inputs.softcap is None:
        yield "log_sum_without_scale", stages.replace(scores=scores / scale).log_sums
    for name in OPTIONS:
        if getattr(inputs, name) is not None:
            yield f"log_sum_ignores_{name}", stages_of(inputs.replace(**{name: None})).log_sums
    if not bool(allowed.all()):
        yield "log_sum_without_mask", stages.replace(allowed=torch.ones_like(allowed)).log_sums
    if bool(stages.bias.any()):
        yield "log_sum_without_bias", stages.replace(bias=stages.bias * 0).log_sums


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Whether two results are one but for rounding, infinities where the other has them too."""
    sizes = other.masked_fill(~other.isfinite(), 0.0).abs().max().clamp_min(1.0)
    close = ((one - other).abs() <= _NEAR * sizes) | (one == other)
    return one.shape == other.shape and bool(close.all())


def _dropout_mistake(subject: MechanismSubject) -> str | None:
    """The mistake of dropout that the weights of many calls show, each of them twice by a value."""
    if "dropout_p" not in subject.accepts or "pools_values" not in subject.laws:
        return None
    module, inputs = subject.build(subject.legal(_DROPPING))
    count = inputs.key.shape[-2]
    eye = torch.eye(count).to(inputs.query)
    inputs = inputs.replace(value=torch.cat([eye, eye], -1)).map(
        lambda tensor: tensor.expand(_CALLS, *tensor.shape)
    )
    weights = stages_of(inputs).weights
    given = inputs.replace(dropout_p=_SHARE)
    answers = [subject.output(module.train(), given).cpu().double() for _ in range(2)]
    once, again = answers[0].nan_to_num(0.0).chunk(2, -1)  # NaN where a row has lost all keys
    kept, keep = once != 0, 1 - _SHARE
    if torch.equal(*answers):
        return "dropout_ignored" if _is_near(once, weights) else None
    dropped = 1 - float(kept.double().mean())

    def times(factor: float) -> bool:
        return all(_is_near(part, weights * factor * (part != 0)) for part in (once, again))

    def drops(share: float) -> bool:
        return abs(dropped - share) < _CHANCE

    if not _is_near(once, again):
        return "dropout_on_the_output" if drops(_SHARE) and times(1 / keep) else None
    sums = once.sum(-1)
    told = sums[sums != 0]
    if told.numel() > sums.numel() / 2 and _is_near(told, torch.ones_like(told)):
        return "dropout_before_softmax"
    mistakes = {
        "dropout_not_rescaled": (_SHARE, 1.0),
        "dropout_divided_by_its_share": (_SHARE, 1 / _SHARE),
        "dropout_multiplied": (_SHARE, keep),
        "dropout_drawn_of_the_kept_share": (keep, 1 / keep),
        "dropout_of_the_kept_share": (keep, 1 / _SHARE),
        "dropout_twice": (1 - keep**2, 1 / keep**2),
    }
    found = [name for name, (share, by) in mistakes.items() if drops(share) and times(by)]
    return found[0] if found else None
