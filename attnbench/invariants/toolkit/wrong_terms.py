"""Which term of a formula is wrong: with what taken for 0, and how far away, scores are right."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.origins import Flow
from attnbench.invariants.toolkit.repairs import in_place
from attnbench.oracle.references import Reference, scalar_score
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_CASE = Case((1,), 5, 7, 8, 8, 8, dtype="float64", seed=3)
_NEAR = 1e-7
_MOST = 3
"""Most distances, or parameters, that are told one by one."""


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


def wrong_term(subject: Subject) -> str:
    """What takes part in the error of scores, each set to 0 alone, and at which distances it is."""
    module, inputs = subject.build(subject.legal(_CASE))
    held = dict((*module.named_parameters(), *module.named_buffers()))
    held = {n.removeprefix("module."): t for n, t in held.items() if t.is_floating_point()}
    held |= {"the query": inputs.query, "the key": inputs.key}

    def call() -> tuple[Flow, Tensor, bool]:
        """What a call computes, by how much it is off, and whether it is right after softmax."""
        expected = scores_of_reference(subject, module, inputs)
        with Flow(0, {}) as flow:
            got = subject.scores(module, inputs)
        assert got is not None
        off = got.double() - expected
        even, rest = (t - t.mean(-1, keepdim=True) for t in (expected, off))
        size = even.abs().max()
        return flow, off, bool(size > _NEAR and (rest.abs() <= _NEAR * size).all())

    with torch.no_grad():
        usual, off, is_right = call()
        right: dict[str, Flow] = {}
        for name, tensor in held.items() if not is_right else ():
            with in_place([(tensor, tensor * 0)]):
                flow, _, holds = call()
            right |= {name: flow} if holds else {}
    text = "" if is_right else _by_distance(off)
    if not 0 < len(right) <= _MOST:
        return text
    lines = ((name, [*_entries(usual, flow, off.shape[-2:])]) for name, flow in right.items())
    alone = next((pair for pair in lines if len(pair[1]) == 1), None)
    where = "" if alone is None else f"; {alone[0]} reaches the scores in {alone[1][0]}"
    return f"\n  it is right where {' or '.join(right)} is 0{where}{text}"


def _entries(usual: Flow, other: Flow, pairs: torch.Size) -> Iterator[str]:
    """The lines that first give other numbers for queries and keys in another call."""
    found = set()
    for key, one in usual.results.items():
        two = other.results.get(key, one)
        if one.shape[-2:] == pairs and not (one.shape == two.shape and torch.equal(one, two)):
            found.add(key)
            makers = (maker for _, maker in usual.made_of[key])
            if found.isdisjoint(maker.key for maker in makers if maker is not None):
                yield key.line.partition(" at ")[2]


def _by_distance(off: Tensor) -> str:
    """Where the scores are right at some distances of key and query, whatever else they are."""
    wrong = (off.abs() > _NEAR * off.abs().max()).flatten(0, -3).any(0)
    q_len, kv_len = wrong.shape
    cells = {d: wrong.diagonal(d + kv_len - q_len) for d in range(1 - kv_len, q_len)}
    cells = {distance: some for distance, some in cells.items() if some.numel()}
    sides = {
        "wrong": [distance for distance, some in cells.items() if bool(some.all())],
        "right": [distance for distance, some in cells.items() if not bool(some.any())],
    }
    how, told = min(sides.items(), key=lambda side: len(side[1]))
    if sum(map(len, sides.values())) < len(cells) or not 0 < len(told) <= _MOST:
        return ""
    distances = f"{', '.join(map(str, told))} alone {'are' if told[1:] else 'is'} {how}"
    return f"\n  of the distances j - i of key and query, {distances}"
