"""What scores, or weights, have in common that are not those of a reference in Python floats."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.checking.cause.instead import Instead
from attnbench.oracle.references import Reference, scalar_score
from attnbench.oracle.textbook import is_textbook
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_CASE = Case((2,), 9, 11, 8, 8, 8, dtype="float64", seed=3)
_NEAR = 1e-6


def beside_reference(subject: Subject) -> str | None:
    """The mistake of scores, or of a mechanism's weights, that differ in one way from those of the
    reference; ``None`` without a reference, or if they differ otherwise.
    """
    if subject.maker.reference is None or is_textbook(subject):
        return None
    module, inputs = subject.build(subject.legal(_CASE))
    is_scoring = subject.scoring is not None
    answer = subject.scores if is_scoring else subject.weights
    if (got := answer(module, inputs)) is None:
        return None
    expected = (scores_of_reference if is_scoring else _weights)(subject, module, inputs)
    got = got.cpu().double()
    if got.shape != expected.shape or _is_small(got - expected, expected):
        return None
    for dtype in _HALVES:
        with Instead(dtype, inputs.query.dtype):
            wide = answer(module, inputs)
        if wide is not None and _is_small(wide.cpu().double() - expected, expected):
            return f"reference_in_{dtype}".replace("torch.", "")
    seen, should = (t.abs() > _NEAR * expected.abs().max() for t in (got, expected))
    others = (seen & (expected == 0)) | (should & (got == 0))
    if not is_scoring and bool(others.any()):
        return "reference_gives_other_keys"
    if (name := _by_block(got, expected)) is not None:
        return name
    if is_scoring and (name := _of_scores(subject, module, inputs, got, expected)) is not None:
        return name
    is_told = bool(seen.any()) and torch.equal(seen, should)
    found = _by_factor(got, expected, seen) if is_told else None
    if is_scoring or found is not None:
        return found
    if bool((torch.minimum(got, expected) < 0).any()):
        return None
    return _of_softmax(*(t.where(t > 0, math.nan).log().diff(dim=-1) for t in (got, expected)))


def _of_scores(
    subject: Subject, module: nn.Module, inputs: Inputs, got: Tensor, expected: Tensor
) -> str | None:
    """The mistake of scores that have a part too many, or too few, or another order."""
    by_query = _ranks_alike(got) and not _ranks_alike(expected)
    name = _added(got - expected, inputs) or _unread(subject, module, inputs, expected)
    return name or ("reference_ranks_by_query" if by_query else None)


def _by_factor(got: Tensor, expected: Tensor, seen: Tensor) -> str | None:
    """The mistake of numbers that are those of the reference times one, or one for each of some."""
    ratio = (got / expected).masked_fill(~seen, math.nan)
    number = ratio.nanmean()
    if _is_small(ratio - number, number):
        return "reference_negated" if _is_small(number + 1, number) else "reference_scaled"
    kind = _kind(ratio.log()) if bool((ratio[seen] > 0).all()) else None
    return None if kind is None else f"reference_times_{kind}"


def _by_block(got: Tensor, expected: Tensor) -> str | None:
    """The mistake of numbers that are right in a query's own block of keys, and in no earlier."""
    told, gaps = expected != 0, got - expected
    wrong = told & (gaps.abs() > _NEAR * expected.abs().max())
    places = [torch.arange(count) for count in got.shape[-2:]]
    for size in range(2, got.shape[-1] // 2):
        queries, keys = (
            place // size for place in (places[0] + got.shape[-1] - len(places[0]), places[1])
        )
        earlier = told & (queries[:, None] > keys)
        if bool(earlier.any()) and torch.equal(wrong, earlier):
            ratio = (got / expected)[earlier]
            same = _is_small(ratio - ratio.mean(), ratio)
            return f"earlier_blocks_{'scaled' if same else 'otherwise'}_{size}"
    return None


def _of_softmax(got: Tensor, expected: Tensor) -> str | None:
    """The mistake of scores, of which the steps from key to key are known."""
    if not torch.equal(got.isnan(), expected.isnan()) or bool(got.isnan().all()):
        return None
    factor = (got * expected).nansum() / expected.square().nansum()
    if _is_small(got - factor * expected, expected.nan_to_num()):
        return "reference_scaled"
    gaps = (got - expected).flatten(0, -3)
    if not _is_small(gaps - gaps.nanmean(0), gaps.nan_to_num()):
        rest = gaps - gaps.nanmean(-2, keepdim=True)
        return "reference_plus_keys" if _is_small(rest, gaps.nan_to_num()) else None
    across = gaps[..., 1:, 1:] - gaps[..., :-1, :-1]
    return f"reference_plus_{'distance' if _is_small(across, gaps.nan_to_num()) else 'places'}"


_HALVES = (torch.bfloat16, torch.float16)


def _added(gaps: Tensor, inputs: Inputs) -> str | None:
    """What is added to the scores that depends on one thing alone, or is a product with it."""
    kind = _kind(gaps)
    if kind is None and _kind(gaps - gaps.mean(-1, keepdim=True)) == "keys":
        return "reference_plus_queries_and_keys"
    items = gaps.flatten(0, -3)
    if kind is None and len(items) > 1 and _is_small(items - items.mean(0), gaps):
        return "reference_plus_places"
    if kind not in ("queries", "keys"):
        side = _side(gaps) if kind == "distance" else ""
        return None if kind is None else f"reference_plus_{kind}{side}"
    axis, tensor = (-1, inputs.query) if kind == "queries" else (-2, inputs.key)
    rows, numbers = tensor.detach().double().flatten(0, -2), gaps.mean(axis).reshape(-1, 1)
    rest = numbers - rows @ torch.linalg.lstsq(rows, numbers).solution
    is_product = len(rows) > rows.shape[-1] and _is_small(rest, numbers)
    return f"reference_plus_{'product_of_' * is_product}{kind}"


def _side(gaps: Tensor) -> str:
    """On which side of the query alone the scores of keys differ; ``""`` for both."""
    shift = gaps.shape[-1] - gaps.shape[-2]
    sides = {"_ahead": gaps.tril(shift), "_behind": gaps.triu(shift)}
    return next((side for side, rest in sides.items() if _is_small(rest, gaps)), "")


def _unread(subject: Subject, module: nn.Module, inputs: Inputs, expected: Tensor) -> str | None:
    """The mistake of features that do not change the scores, and change those of the reference."""
    got = subject.scores(module, inputs)

    def stay(moved: Inputs) -> bool:
        scores = subject.scores(module, moved)
        return got is not None and scores is not None and torch.equal(scores, got)

    for name in ("query", "key"):
        tensor = getattr(inputs, name)
        for place in (-1, 0):
            other = tensor.clone()
            other[..., place] = 1 - 3 * other[..., place]
            moved = inputs.replace(**{name: other})
            if not stay(moved) or stay(inputs.replace(**{name: 1 - 3 * tensor})):
                continue
            if not _is_small(scores_of_reference(subject, module, moved) - expected, expected):
                return f"features_of_{name}_unread"
    return None


def _ranks_alike(scores: Tensor) -> bool:
    """Whether the keys of each item stand in one order for all queries, which are several."""
    order = scores.argsort(-1)
    return bool((order == order[..., :1, :]).all()) and not _is_small(scores.diff(dim=-1), scores)


def scores_of_reference(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The scores ``(*lead, L, S)`` of a scoring function's reference in Python floats."""
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
        "one_number": gaps - gaps.nanmean(),
        "distance": gaps[..., 1:, 1:] - gaps[..., :-1, :-1],
        "queries": gaps - gaps.nanmean(-1, keepdim=True),
        "keys": gaps - gaps.nanmean(-2, keepdim=True),
    }
    alike = _is_small(gaps - gaps.nanmean(0), gaps.nan_to_num())
    if not alike:
        del kinds["distance"]
    return next((name for name, rest in kinds.items() if _is_small(rest, gaps.nan_to_num())), None)
