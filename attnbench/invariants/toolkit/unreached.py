"""Parameters that no gradient from the scores, or from the output, reaches."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import reject
from attnbench.invariants.toolkit.derivations import leaves_of
from attnbench.invariants.toolkit.slopes import gradients_of
from attnbench.subject.devices import seed
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, largest

TRIES = 4
"""Number of seeds tried before a gradient of 0 counts as a failure."""

_ROUNDING = 80.0
"""A gradient of fewer units is a sum that cancels: those here are of numbers of order 1."""

NONE = "none at all"
"""What a gradient that does not exist is called."""

CANCELLED = "0 but for rounding, as where softmax cancels what all keys have in common"
"""What a gradient of the output whose terms cancel is called."""


def unreached(subject: Subject, case: Case) -> dict[str, str]:
    """What each parameter lacks that no seed reaches, and the query, by name and in words."""
    lacking: dict[str, str] = {}
    for number in range(TRIES):
        base = Baseline(subject, case.replace(seed=case.seed + number))
        found = _lacking(base)
        lacking = {name: what for name, what in found.items() if not number or name in lacking}
        if not lacking.keys() - {"query"}:
            return {}
    return lacking


def _lacking(base: Baseline) -> dict[str, str]:
    inputs, named = leaves_of(base.module, base.inputs)
    named = {n: leaf for n, leaf in named.items() if n.startswith("parameter") and leaf.numel()}
    if not named:
        reject("it has no parameters")
    base.module.train()  # where parameters are trained, and a hard choice becomes a soft one
    result = _result(base, inputs)
    weight = torch.randn(result.shape, generator=base.generator).to(result)
    gradients = gradients_of((result * weight).sum(), {**named, "query": inputs.query})
    found = {name: _lack(base, gradient) for name, gradient in gradients.items()}
    if found["query"] == CANCELLED and not _ignores_query(base):
        found["query"] = ""  # it is small, as where a softmax is saturated
    # a bias of all keys cancels by design; where the query does, no weight depends on it
    passed = {""} if found["query"] == CANCELLED else {"", CANCELLED}
    return {name: what for name, what in found.items() if what not in passed}


def _result(base: Baseline, inputs: Inputs) -> Tensor:
    """The scores if there are any: softmax cancels what all keys have in common."""
    scores = base.subject.scores(base.module, inputs)
    return base.run(inputs) if scores is None else scores


def _lack(base: Baseline, gradient: Tensor | None) -> str:
    """What a gradient is, in words, if that is too little."""
    if gradient is None:
        return NONE
    size = float(gradient.abs().max())
    if not size < _ROUNDING * base.eps:
        return ""
    if base.subject.scoring is not None:
        return "0 but for rounding" if size else "0 in every entry"
    # a mechanism may drop a score, as with one key in its window; the slopes tell a true 0
    return CANCELLED if size else ""


def _ignores_query(base: Baseline) -> bool:
    """Whether another query gets the same output."""
    other = base.inputs.replace(query=base.other(base.inputs.query))
    seed(base.case.device, base.case.seed)
    output = base.run(base.inputs)
    seed(base.case.device, base.case.seed)
    return largest(base.run(other) - output) <= 256 * base.eps * largest(output)
