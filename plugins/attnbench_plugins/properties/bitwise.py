"""Laws of reproducibility: the same numbers, to the last bit, however a call is arranged.

A kernel that chooses its order of sums by the sizes of a call does not obey them, and need not. Who
declares one promises that batches, chunks, repetitions or threads change nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnbench import Case, Inputs, Invariant, Subject
from attnbench.testing import (
    KINDS,
    LayerInputs,
    LayerSubject,
    agree_within,
    explicit,
    ordinary,
    resizes,
    select_items,
    select_queries,
)
from attnbench_plugins.properties import HINTS

_THREADS = (1, 2, 3)
_LONG = 513
"""Keys of a long case; torch's fused attention changes its order of sums from here on."""


@dataclass(frozen=True)
class Rerun:
    """One output, or a part of it, by two arrangements of the same call.

    Args:
        got: ``(..., L', Ev)`` by the arrangement.
        expected: the same part of the call as it is.
        prefix: what ``got`` is, for a message.
    """

    got: Tensor
    expected: Tensor
    prefix: str


@dataclass(frozen=True)
class Arrangement:
    """A law: a way to arrange a call that changes no bit of its output.

    Args:
        law: name of the law.
        statement: the law in one sentence.
        reruns: ``reruns(subject, module, inputs)`` yields pairs of outputs.
        applies: ``applies(subject)`` gives ``None``, or why there is no such arrangement.
    """

    law: str
    statement: str
    reruns: Callable[[Subject, nn.Module, Inputs], Iterator[Rerun]]
    applies: Callable[[Subject], str | None] = lambda subject: None


def _alone(subject: Subject, module: nn.Module, inputs: Inputs) -> Iterator[Rerun]:
    whole = subject.output(module, inputs)
    for item in range(inputs.query.shape[0] if inputs.query.dim() > 2 else 0):
        part = slice(item, item + 1)
        alone = subject.output(module, select_items(inputs, (part,)))
        yield Rerun(alone, whole[part], f"item {item} alone, not in a batch of {len(whole)}: ")


def _chunks(subject: Subject, module: nn.Module, inputs: Inputs) -> Iterator[Rerun]:
    if isinstance(subject, LayerSubject) and isinstance(inputs, LayerInputs):
        yield from _cached_chunks(subject, module, inputs)
        return
    inputs = explicit(inputs)  # a chunk needs the mask that its rows had
    whole = subject.output(module, inputs)
    length = whole.shape[-2]
    for first, last in {(0, 1), (length - 1, length), (0, length // 2), (length // 2, length)}:
        if 0 < last - first < length:
            rows = torch.arange(first, last)
            got = subject.output(module, select_queries(inputs, rows))
            change = f"queries {first} to {last - 1} of {length} alone: "
            yield Rerun(got, whole[..., first:last, :], change)


def _cached_chunks(
    subject: LayerSubject, module: nn.Module, inputs: LayerInputs
) -> Iterator[Rerun]:
    hidden = inputs.hidden
    batch, length = hidden.shape[:2]
    whole, _ = subject.call(module, hidden, None, subject.new_cache(module, batch))
    for cut in {1, length // 2, length - 1} - {0, length}:
        start, cache = subject.call(module, hidden[:, :cut], None, subject.new_cache(module, batch))
        rest, _ = subject.call(module, hidden[:, cut:], None, cache)
        change = f"{cut} tokens, then {length - cut} with the cache, not all at once: "
        yield Rerun(torch.cat((start, rest), 1), whole, change)


def _has_chunks(subject: Subject) -> str | None:
    if isinstance(subject, LayerSubject):
        return None if subject.spec.cache else "has no cache"
    return resizes(subject, "q_len")


def _again(subject: Subject, module: nn.Module, inputs: Inputs) -> Iterator[Rerun]:
    first = subject.output(module, inputs).clone()
    for number in (2, 3):
        yield Rerun(subject.output(module, inputs), first, f"call {number} of the same: ")


def _threads(subject: Subject, module: nn.Module, inputs: Inputs) -> Iterator[Rerun]:
    given = torch.get_num_threads()
    try:
        outputs = []
        for count in _THREADS:
            torch.set_num_threads(count)
            outputs.append(subject.output(module, inputs).clone())
    finally:
        torch.set_num_threads(given)
    for count, got in zip(_THREADS[1:], outputs[1:], strict=True):
        yield Rerun(got, outputs[0], f"{count} threads, not one: ")


ARRANGEMENTS = (
    Arrangement(
        "batch_invariant",
        "An item alone gives, to the last bit, what it gives in a batch.",
        _alone,
    ),
    Arrangement(
        "chunk_invariant",
        "Queries in chunks, or tokens in chunks with a cache, give to the last bit what they give "
        "in one call.",
        _chunks,
        _has_chunks,
    ),
    Arrangement(
        "run_to_run",
        "The same call gives, to the last bit, the same output every time.",
        _again,
    ),
    Arrangement(
        "thread_invariant",
        "The number of threads changes no bit of the output.",
        _threads,
    ),
)
"""The laws, in the order in which they are graded."""


def _holds(arrangement: Arrangement) -> Callable[[Subject, Case], None]:
    def check(subject: Subject, case: Case) -> None:
        if case.variant("length", "drawn") == "long":
            case = subject.legal(case.replace(q_len=min(case.q_len, 8), kv_len=_LONG))
        module, inputs = subject.build(case)
        with torch.no_grad():
            for rerun in arrangement.reruns(subject, module, inputs):
                what = f"{rerun.prefix}output"
                agree_within(rerun.got, rerun.expected, 0.0, what, "the call as it is")

    return check


def _law(arrangement: Arrangement) -> Invariant:
    return Invariant(
        name=arrangement.law,
        statement=arrangement.statement,
        hint=HINTS[arrangement.law],
        check=_holds(arrangement),
        cases=lambda subject: ordinary(subject, variants={"length": ("drawn", "long")}),
        applies=arrangement.applies,
        law=True,
        kinds=KINDS,
    )


def attnbench_invariants() -> list[Invariant]:
    """The laws of reproducibility."""
    return [*map(_law, ARRANGEMENTS)]
