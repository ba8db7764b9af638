"""Invariants on masking: a key that is hidden might as well not be there."""

from __future__ import annotations

import math

import numpy as np
import torch

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.applicability import (
    any_of,
    hides_by_a_number,
    knows_positions,
    ties,
)
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import (
    HIDING_MASKS,
    benign,
    junk_in_words,
    only_keys,
    with_junk,
    with_mask,
)
from attnbench.subject.subject import Subject


def _some_rows(base: Baseline) -> list[tuple[int, ...]]:
    """Indices ``(*lead, row)`` of a few rows: the first, the last, and one by chance."""
    shape = base.inputs.query.shape[:-1]
    count = math.prod(shape)
    flat = dict.fromkeys((0, count - 1, base.choose(count)))
    return [tuple(map(int, np.unravel_index(n, shape))) for n in flat]


@invariant(
    cases=benign,
    masks=HIDING_MASKS,
    min_kv_len=2,
    max_len=65,
    beyond=(Case((1,), 3, 520, mask="boolean"),),
    applies=any_of(knows_positions, ties("kv_len")),
)
def masking_equals_deleting(subject: Subject, case: Case) -> None:
    """Hiding keys from a query gives what giving it only the other keys gives."""
    base = Baseline(subject, case)
    hiding = [index for index in _some_rows(base) if not bool(base.allowed[index].all())]
    if not hiding:
        reject("nothing is hidden from these queries")
    for index in hiding:
        left = base.allowed[index].nonzero().squeeze(-1)
        got = base.run(only_keys(base.inputs, left))[index]
        row = ", ".join(map(str, index))
        base.expect(
            got,
            f"given nothing but the keys {left.tolist()} that its mask leaves, output[{row}]",
            f"masking the others of {case.kv_len} keys",
            taken=lambda output, index=index: output[index],  # type: ignore[misc]
        )


@invariant(
    cases=benign,
    masks=("none",),
    regimes=("normal",),
    min_kv_len=2,
    max_features=17,
    variants={"hidden_by": ("boolean", "floating")},
    applies=any_of(hides_by_a_number, knows_positions, ties("kv_len")),
)
def hidden_keys_stay_hidden_at_extreme_scores(subject: Subject, case: Case) -> None:
    """A key stays hidden however far below zero the scores of the others lie."""
    base = Baseline(subject, case)
    slots = [base.choose(case.kv_len), base.choose(case.kv_len - 1)]
    slots[1] += slots[1] >= slots[0]
    floating = case.variant("hidden_by", "boolean") == "floating"
    factors = (2.0**20, 2.0**20)
    if case.dtype == "float16":  # scores within its range, and beyond it, for what is wider inside
        factors = (128.0, 512.0) if floating else (16.0, 32.0)
    rows = torch.arange(case.q_len) % 2
    # every second query sees one slot alone, the others another one
    allowed = torch.tensor(slots)[rows].unsqueeze(-1) == torch.arange(case.kv_len)
    inputs = base.inputs.replace(
        query=base.inputs.query * factors[0], key=base.inputs.key * factors[1]
    )
    for sign in (1.0, -1.0) if case.dtype == "float16" and floating else ():
        # a score of -inf is an empty row at most, but the one of the opposite query gives NaN, or
        # what NaN is replaced with
        found = base.run(inputs.replace(query=sign * inputs.query))
        if not bool((found.isfinite() & (found != 0).any(-1, keepdim=True)).all()):
            reject("the scores overflow")
    added = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    base = base.on(with_mask(inputs, added if floating else allowed))
    for parity, slot in enumerate(slots[: case.q_len]):
        seeing = (rows == parity).nonzero().squeeze(-1).to(base.inputs.query.device)
        alone = base.run(only_keys(base.inputs, torch.tensor([slot])))
        if not bool(alone.isfinite().all()):
            reject("the scores overflow")
        base.expect(
            alone.index_select(-2, seeing),
            f"for queries {seeing.tolist()}, given key {slot} alone, output",
            f"masking all other keys, with query and key times {factors[0]:g} and {factors[1]:g},",
            taken=lambda output, seeing=seeing: output.index_select(-2, seeing),  # type: ignore[misc]
        )


@invariant(cases=benign, masks=HIDING_MASKS, min_kv_len=2, max_len=65)
def masked_slots_are_inert(subject: Subject, case: Case) -> None:
    """Whatever finite key and value a hidden slot holds, the output is the same."""
    base = Baseline(subject, case)
    hidden = (~base.allowed).flatten(0, -2).any(0).nonzero().squeeze(-1)
    if hidden.numel() == 0:
        reject("nothing is hidden")
    slot = hidden[base.choose(hidden.numel())]
    blind = ~base.allowed[..., slot].unsqueeze(-1)
    got = base.run(with_junk(subject, base.inputs, slot.unsqueeze(0)))
    base.expect(
        torch.where(blind, got, base.output),
        f"with {junk_in_words(subject, base.inputs)} of slot {int(slot)}, "
        "which is hidden from this query, output",
        "the same call with what the slot holds",
    )
