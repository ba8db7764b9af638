"""Small changes of what a scoring function computes with that make its scores those expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_faults import told_once
from attnbench.invariants.toolkit.repairs import Tried, first_of
from attnbench.invariants.toolkit.wrong_terms import scores_of_reference, wrong_term
from attnbench.subject.subject import Subject

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.mT.clone() if t.dim() > 1 else t,
    "squared": torch.square,
    "replaced by its root": torch.sqrt,
    "replaced by its power of e": torch.exp,
    "replaced by its logarithm": torch.log,
    "replaced by 1 / itself": torch.reciprocal,
    "given to tanh": torch.tanh,
    "given to atanh": torch.atanh,
    "given to sigmoid": torch.sigmoid,
    "given to relu": torch.relu,
    "replaced by its absolute value": torch.abs,
    "divided by its norm over the last axis": lambda t: t / t.norm(dim=-1, keepdim=True),
    "multiplied by the root of its last axis' size": lambda t: t * t.shape[-1:].numel() ** 0.5,
    "divided by its last axis' size": lambda t: t / t.shape[-1:].numel(),
}


@dataclass
class _Scored:
    module: nn.Module
    hidden: Tensor


@told_once
def repaired_scores(subject: Subject, case: Case) -> str:
    """What makes the scores of a scoring function those of its reference, at a case too, or else
    which term of them is wrong.
    """
    plain = case.replace(lead=(1,), dtype="float64", mask="none", layout="contiguous")
    squares = [Case((1,), n, n, 16, 16, 16, dtype="float64", seed=n) for n in (7, 9)]
    with torch.no_grad():
        tries = (_tried(subject, subject.legal(one)) for one in (*squares, plain))
        return first_of(tries, "it is right")[1] or wrong_term(subject)


def _tried(subject: Subject, case: Case) -> Tried[_Scored]:
    module, inputs = subject.build(case)
    right = scores_of_reference(subject, module, inputs)

    def call(one: _Scored) -> Tensor:
        scores = subject.scores(one.module, inputs)
        assert scores is not None
        return scores

    scored = _Scored(module, inputs.key)
    return Tried(scored, lambda one: right, call, functions=_FUNCTIONS)
