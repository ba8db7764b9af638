"""Twenty mutants of an attention that adds up in one order, and how each of five laws grades."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_answers import reproducibility as answers
from attnbench_zoo.mutants.bitwise import IN_ORDER, InOrder
from torch import Tensor

from attnbench.invariants.bitwise import ARRANGEMENTS

LAWS = [arrangement.law for arrangement in ARRANGEMENTS]
SHORT = {law.partition("_")[0]: law for law in LAWS}
"""``batch``, ``position``, ``chunk``, ``run`` and ``thread``."""
EVERY = dict.fromkeys(SHORT, "rounding")

Attend = Callable[..., Tensor]
Mutant = Callable[[InOrder, Attend, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def turned(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    """Keys added up from the last to the first."""
    return attend(query, key.flip(-2), value.flip(-2), None if mask is None else mask.flip(-1))


def when(meets: Callable[[InOrder, Tensor], bool], change: Callable[..., Tensor]) -> Mutant:
    """A change that a property of the call brings about."""

    def mutant(
        module: InOrder, attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any
    ) -> Tensor:
        if meets(module, query):
            return change(attend, query, key, value, mask)
        return attend(query, key, value, mask)

    return mutant


def always(change: Callable[..., Tensor]) -> Mutant:
    return when(lambda module, query: True, change)


def item(index: int, change: Callable[..., Tensor]) -> Mutant:
    """A change of one item of a batch."""

    def mutant(_: InOrder, attend: Attend, *given: Any) -> Tensor:
        right, other = attend(*given), change(attend, *given)
        if right.dim() < 3 or (index and len(right) < 2):
            return right
        right[index] = other[index]
        return right

    return mutant


def narrow(dtype: torch.dtype) -> Callable[..., Tensor]:
    return lambda attend, query, key, value, mask: attend(
        query.to(dtype).to(key.dtype), key, value, mask
    )


def wide(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    return attend(query.double(), key.double(), value.double(), mask).to(value.dtype)


def padded(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    """One more key, which is hidden."""
    key, value = (torch.cat([t, torch.ones_like(t[..., :1, :])], -2) for t in (key, value))
    seen = torch.ones(query.shape[-2], key.shape[-2] - 1, dtype=torch.bool)
    seen = seen if mask is None else mask
    return attend(query, key, value, torch.nn.functional.pad(seen, (0, 1), value=False))


def batch_maximum(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    """All scores less one number of the whole call, as of a scale for a narrower dtype."""
    return attend(query * query.abs().max(), key / query.abs().max(), value, mask)


def of_the_batch(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    whole = query.amax(0, keepdim=True) if query.dim() > 2 else query
    return attend(query + whole, key, value, mask)


def by_row(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    """Queries that lose a little with each position in the call."""
    return attend(query * 0.99 ** torch.arange(query.shape[-2])[:, None], key, value, mask)


def dropped(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    return torch.dropout(attend(query, key, value, mask), 0.1, True)


def any_order(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    order = torch.randperm(key.shape[-2])
    mask = None if mask is None else mask[..., order]
    return attend(query, key[..., order, :], value[..., order, :], mask)


def without_last(attend: Attend, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
    found = attend(query, key, value, mask)
    found[..., -1, :] = 0
    return found


def remembered(module: InOrder, attend: Attend, query: Tensor, *given: Any) -> Tensor:
    """The output of an earlier call of the same shape, as of a graph with inputs of its own."""
    known = module.__dict__.setdefault("known", {})
    return known.setdefault((query.shape, query.dtype), attend(query, *given)).clone()


MUTANTS: dict[str, tuple[Mutant, dict[str, str]]] = {
    "a batch of one splits its keys": (
        when(lambda _, q: len(q) == 1, turned),
        {"batch": "rounding"},
    ),
    "large batches take another tile": (
        when(lambda _, q: len(q) > 2, turned),
        {"batch": "rounding"},
    ),
    "a batch is computed in bfloat16": (
        when(lambda _, q: len(q) > 1, narrow(torch.bfloat16)),
        {"batch": "neither"},
    ),
    "a scale of the whole call": (
        always(batch_maximum),
        {"batch": "rounding", "chunk": "rounding"},
    ),
    "a statistic of the batch": (always(of_the_batch), {"batch": "neither"}),
    "the first item by another kernel": (
        item(0, turned),
        {"batch": "rounding", "position": "rounding"},
    ),
    "the last item by another kernel": (
        item(-1, turned),
        {"batch": "rounding", "position": "rounding"},
    ),
    "the last item in float16": (
        item(-1, narrow(torch.float16)),
        {"batch": "neither", "position": "neither"},
    ),
    "one query by a kernel for decoding": (
        when(lambda _, q: q.shape[-2] == 1, turned),
        {"chunk": "rounding"},
    ),
    "many queries by another tile": (
        when(lambda _, q: q.shape[-2] > 4, turned),
        {"chunk": "rounding"},
    ),
    "many queries in float16": (
        when(lambda _, q: q.shape[-2] > 4, narrow(torch.float16)),
        {"chunk": "neither"},
    ),
    "positions counted from the chunk": (always(by_row), {"chunk": "neither"}),
    "sums in the order of arrival": (always(any_order), EVERY),
    "a first call that tunes": (when(lambda module, _: module.calls == 0, turned), EVERY),
    "every other call in float16": (
        when(lambda module, _: module.calls % 2 == 0, narrow(torch.float16)),
        dict.fromkeys(SHORT, "neither"),
    ),
    "dropout": (always(dropped), dict.fromkeys(SHORT, "neither")),
    "an output of an earlier call": (
        remembered,
        {"batch": "neither", "position": "neither", "chunk": "neither"},
    ),
    "threads that split the keys": (
        when(lambda *_: torch.get_num_threads() > 1, turned),
        {"thread": "rounding"},
    ),
    "a thread that loses the last row": (
        when(lambda *_: torch.get_num_threads() > 2, without_last),
        {"thread": "neither"},
    ),
    "a wider dtype, and a hidden key": (
        always(lambda attend, *given: wide(lambda *more: padded(attend, *more), *given)),
        {},
    ),
}
"""Each with the grades of the laws that bits break; all others hold bitwise."""


@pytest.mark.parametrize("name", MUTANTS)
def test_each_law_grades_a_mutant(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(answers, "_LENGTHS", (1, 3, 8, 21))
    mutant, grades = MUTANTS[name]

    class Made(InOrder):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            if query.dim() < 3:
                return super().forward(query, key, value, attn_mask)
            before = self.calls
            found = mutant(self, super().forward, query, key, value, attn_mask)
            self.calls = before + 1
            return found

    rows = answers.drift(replace(IN_ORDER.spec, make=Made), dtypes=("float32",))
    found = {row["law"]: row["grade"] for row in rows}
    assert found == {law: grades.get(short, "bitwise") for short, law in SHORT.items()}
    assert len(MUTANTS) == 20
