"""Which keys a query sees in a wrong call, and which it should see."""

from __future__ import annotations

import contextlib

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
"""Allowed share of an error in an output, and the largest weight of what is not seen."""

_LARGEST_SCORE, _MOST_RUNS = 8.0, 3


def place_of(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """The line in which the NaN of a failure arises, or else the keys that a query sees there."""
    with contextlib.suppress(Exception, SystemExit):  # it may raise in a call of its own
        if is_no_number(failure) and (found := nan_origin(subject, invariant, failure)):
            return found
    with torch.no_grad(), contextlib.suppress(Exception, SystemExit):  # of no textbook form
        return keys_seen(subject, invariant, failure)
    return ""


def keys_seen(subject: Subject, invariant: Invariant, failure: Failure) -> str:
    """The keys that a query sees in the first wrong call of a check, and those that it should."""
    if failure.raised or invariant.name in COMPILING or not is_textbook(subject):
        return ""
    answers = answers_at(subject, invariant, Case.from_id(failure.case or ""))
    for module, inputs, answer in answers if subject.kind == "mechanism" and failure.case else ():
        stages, output = stages_of(inputs), answer.detach().cpu().double()
        right, value = stages.weights, stages.finite_value
        near = _NEAR * float(value.abs().amax())
        if inputs.query.dtype.itemsize < 4 or agree(output, right @ value, near):
            continue
        if not bool(output.isfinite().all()):  # NaN shows no key
            return ""
        is_far = bool((stages.scores + stages.bias).abs().amax() > _LARGEST_SCORE)
        shown = None if is_far or inputs.dropout_p else subject.weights(module, inputs)
        if shown is None or shown.shape != right.shape:
            return ""
        shown = shown.detach().cpu().double()  # it is told if it is all that is wrong
        return _in_words(shown > _NONE, right > _NONE) if agree(shown @ value, output, near) else ""
    return ""


def _in_words(seen: Tensor, right: Tensor) -> str:
    wrong = (seen != right).any(-1)
    row = next(map(tuple, wrong.nonzero().tolist()), None)
    keys = [_runs(table[row].nonzero().flatten().tolist()) for table in (seen, right) if row]
    if row is None or "" in keys:
        return ""
    where = f" at {[*row[:-1]]}" if wrong[..., 0].numel() > 1 else ""
    count = (
        f": so {int(wrong.sum())} of {wrong.numel()} rows are wrong" if wrong.numel() > 1 else ""
    )
    is_causal = torch.equal(seen, right.tril(right.shape[-1] - right.shape[-2]))
    how = ", as with causality," if is_causal else ","
    return f"query {row[-1]}{where} sees {keys[0]}{how} and should see {keys[1]}{count}"


def _runs(keys: list[int]) -> str:
    """Keys in words, as runs; ``""`` if they are too many."""
    pairs = [[key for key in keys if key + step not in keys] for step in (-1, 1)]
    runs = [str(a) if a == b else f"{a} to {b}" for a, b in zip(*pairs, strict=True)]
    text = f"key{'s' * (len(keys) > 1)} {' and '.join(runs)}" if keys else "no key"
    return text if len(runs) <= _MOST_RUNS else ""
