"""Which keys a query sees in a wrong call, and which it should see."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.checking.cause.nan_origin import is_no_number, nan_origin
from attnbench.checking.cause.replays import answers_at
from attnbench.checking.cause.witnesses import agree
from attnbench.checking.outcomes import COMPILING, Failure
from attnbench.oracle.textbook import is_textbook, stages_of
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_NEAR, _NONE = 1e-4, 1e-9
"""Allowed share of an error, and a weight that is none where the right one is above the first."""

_LARGEST_SCORE, _MOST_RUNS = 12.0, 3


def place_of(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """The line in which the NaN of a failure arises, or else the keys that a query sees there."""
    found = nan_origin(subject, invariant, failure) if is_no_number(failure) else ""
    return found or keys_seen(subject, invariant, failure)


def keys_seen(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """The keys that a query sees in the first wrong call of a failing check, and which it should.

    Returns:
        Words, with how many queries see others than theirs; ``""`` if all see theirs.
    """
    if failure.case is None or failure.raised or invariant.name in COMPILING:
        return ""
    if subject.kind != "mechanism" or not is_textbook(subject):
        return ""
    case = Case.from_id(failure.case)
    for module, inputs, answer in answers_at(subject, invariant, case):
        stages = stages_of(inputs)
        right, value = stages.weights, stages.finite_value
        near = _NEAR * float(value.abs().amax())
        output = answer.detach().cpu().double()
        if inputs.query.dtype.itemsize < 4 or agree(output, right @ value, near):
            continue
        if inputs.dropout_p or bool((stages.scores + stages.bias).abs().amax() > _LARGEST_SCORE):
            return ""
        with torch.no_grad():
            shown = subject.weights(module, inputs)
        if shown is None or shown.shape != right.shape or not bool(shown.isfinite().all()):
            return ""
        shown = shown.detach().cpu().double()
        if not agree(shown @ value, output, near):  # it pools otherwise, too
            return ""
        return _in_words(shown > _NONE, right > _NONE)
    return ""


def _in_words(seen: Tensor, right: Tensor) -> str:
    wrong = (seen != right).any(-1)
    if not bool(wrong.any()):
        return ""
    *lead, query = wrong.nonzero()[0].tolist()
    row = (*lead, query)
    keys = [_runs(table[row].nonzero().flatten().tolist()) for table in (seen, right)]
    if "" in keys:
        return ""
    where = f" at {lead}" if wrong[..., 0].numel() > 1 else ""
    count = (
        f": so {int(wrong.sum())} of {wrong.numel()} rows are wrong" if wrong.numel() > 1 else ""
    )
    return f"query {query}{where} sees {keys[0]}, and should see {keys[1]}{count}"


def _runs(keys: list[int]) -> str:
    """Keys in words, as runs; ``""`` if they are too many."""
    starts = [key for key in keys if key - 1 not in keys]
    ends = [key for key in keys if key + 1 not in keys]
    if len(starts) > _MOST_RUNS:
        return ""
    pairs = zip(starts, ends, strict=True)
    texts = [f"{start} to {end}" if start != end else str(start) for start, end in pairs]
    return f"key{'s' * (len(keys) > 1)} {' and '.join(texts)}" if keys else "no key"
