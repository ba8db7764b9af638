"""Mistakes that a subject's own answers show, whatever its scores are."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.subject.subject import Subject

_CASE = Case((3,), 4, 6, 8, 8, 8)
_PADDED = Case((2,), 5, 5, 8, 8, 8, mask="padding", seed=1)
_OFF = 1e-3


def shown_by_itself(subject: Subject) -> str | None:
    """The first mistake that the answers of a mechanism show; ``None`` without one."""
    if subject.kind != "mechanism":
        return None
    with contextlib.suppress(Exception, SystemExit), torch.no_grad():  # of which others tell
        return _other_axis(subject) or _lost_part(subject)
    return None


def _other_axis(subject: Subject) -> str | None:
    """The mistake of weights that sum to 1, but not over the keys."""
    weights = subject.weights(*subject.build(subject.legal(_CASE)))
    if weights is None:
        return None
    whole = [bool(((weights.sum(d) - 1).abs() < _OFF).all()) for d in range(weights.dim())]
    *others, keys = [one and size > 1 for one, size in zip(whole, weights.shape, strict=True)]
    if keys or not any(others):
        return None
    axis = len(others) - 1 - others[::-1].index(True)
    return "softmax_over_the_queries" if others[-1] else f"softmax_over_dimension_{axis}"


def _lost_part(subject: Subject) -> str | None:
    """The mistake of lengths and a mask that are right alone, and wrong in one call."""
    if "valid_lens" not in subject.accepts:
        return None
    module, inputs = subject.build(subject.legal(_PADDED))
    real = inputs.allowed.expand(*inputs.query.shape[:-1], inputs.key.shape[-2])
    part = torch.rand(real.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    part[..., 0] = True

    def hiding(mask: Tensor | None) -> Tensor:
        return subject.output(module, inputs.replace(attn_mask=mask, valid_lens=None))

    together = subject.output(module, inputs.replace(attn_mask=part))
    alone = ((part | ~part, hiding(None)), (real, subject.output(module, inputs)))
    if not all(_same(hiding(mask), output) for mask, output in alone):
        return None
    if _same(together, hiding(part & real)):
        return None
    wrong = {
        "lengths_lost_beside_a_mask": part,
        "mask_lost_beside_lengths": real,
        "mask_counts_where_lengths_hide_too": part | real,
    }
    return next((name for name, mask in wrong.items() if _same(together, hiding(mask))), None)


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= _OFF * other.abs().amax()).all())
