"""What scores, or weights, have in common that are not those of a reference in Python floats."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.oracle.references import Reference, scalar_score
from attnbench.oracle.textbook import is_textbook
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_CASE = Case((2,), 5, 7, 8, 8, 8, dtype="float64", seed=3)
_NEAR = 1e-6


def beside_reference(subject: Subject) -> str | None:
    """The mistake of scores, or of a mechanism's weights, that differ in one way from those of the
    reference; ``None`` without a reference, or if they differ otherwise.
    """
    if subject.maker.reference is None or is_textbook(subject):
        return None
    module, inputs = subject.build(subject.legal(_CASE))
    is_scoring = subject.scoring is not None
    got = (subject.scores if is_scoring else subject.weights)(module, inputs)
    if got is None:
        return None
    expected = (_scores if is_scoring else _weights)(subject, module, inputs)
    got = got.cpu().double()
    if got.shape != expected.shape or _is_small(got - expected, expected):
        return None
    seen, should = (t.abs() > _NEAR * expected.abs().max() for t in (got, expected))
    others = (seen & (expected == 0)) | (should & (got == 0))
    if not is_scoring and bool(others.any()):
        return "reference_gives_other_keys"
    gaps = [got - expected] if is_scoring else []
    if bool(seen.any()) and bool((seen == should).all()):
        ratio = (got / expected).masked_fill(~seen, math.nan)
        number = ratio.nanmean()
        if _is_small(ratio - number, number):
            return "reference_negated" if _is_small(number + 1, number) else "reference_scaled"
        gaps += [ratio.log()] if bool((ratio[seen] > 0).all()) else []
    return next((name for gap in gaps if (name := _kind(gap)) is not None), None)


def _scores(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    reference = Reference(subject, module, inputs)
    query, key = reference.inputs.query, reference.inputs.key
    shift = key.shape[-2] - query.shape[-2]
    items = zip(*(t.flatten(0, -3).tolist() for t in (query, key)), strict=True)
    of_pair: Any = subject.maker.reference
    score = functools.partial(scalar_score, of_pair, reference.module)
    rows = [
        [[score(q, keys, i + shift, j) for j in range(len(keys))] for i, q in enumerate(queries)]
        for queries, keys in items
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(*query.shape[:-1], key.shape[-2])


def _weights(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The weights of the reference, which the identity as value shows."""
    key = inputs.key
    one = torch.eye(key.shape[-2]).to(key).expand(*key.shape[:-1], key.shape[-2])
    reference = Reference(subject, module, inputs.replace(value=one))
    return reference.scalar(reference.rows()).reshape(*inputs.query.shape[:-1], key.shape[-2])


def _is_small(gaps: Tensor, sizes: Tensor) -> bool:
    return bool((gaps.isnan() | (gaps.abs() <= _NEAR * sizes.abs().max())).all())


def _kind(gaps: Tensor) -> str | None:
    """What alone the gaps depend on, the same in all items."""
    gaps = gaps.flatten(0, -3)
    kinds = {
        "reference_but_for_one_number": gaps - gaps.nanmean(),
        "reference_but_for_distance": gaps[..., 1:, 1:] - gaps[..., :-1, :-1],
        "reference_but_for_queries": gaps - gaps.nanmean(-1, keepdim=True),
        "reference_but_for_keys": gaps - gaps.nanmean(-2, keepdim=True),
    }
    alike = _is_small(gaps - gaps.nanmean(0), gaps.nan_to_num())
    if not alike:
        del kinds["reference_but_for_distance"]
    return next((name for name, rest in kinds.items() if _is_small(rest, gaps.nan_to_num())), None)
