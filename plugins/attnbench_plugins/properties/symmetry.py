"""Invariants on symmetry: a query's output depends neither on order nor on other queries."""

from __future__ import annotations

import torch

from attnbench import Case, Subject
from attnbench.testing import (
    Baseline,
    any_of,
    benign,
    knows_positions,
    reject,
    select_items,
    select_keys,
    select_queries,
    ties,
)
from attnbench_plugins.properties import invariant

_OTHERS = {"others": ("larger", "alike", "alike", "alike")}
_LARGE = 2.0**80
"""A number whose square overflows float32, while the scores of such items do not."""


def _order(base: Baseline, count: int) -> torch.Tensor:
    order = torch.randperm(count, generator=base.generator)
    return order.roll(1) if bool((order == torch.arange(count)).all()) else order


@invariant(cases=benign, min_kv_len=2, applies=knows_positions)
def keys_permute_freely(subject: Subject, case: Case) -> None:
    """Keys, values and mask in another order together give the same output."""
    base = Baseline(subject, case)
    order = _order(base, case.kv_len)
    base.expect(
        base.run(select_keys(base.inputs, order)),
        f"with keys, values and mask in the order {order.tolist()}, output",
        "the order as it was",
    )


@invariant(cases=benign, min_q_len=2, applies=knows_positions)
def queries_permute_freely(subject: Subject, case: Case) -> None:
    """Queries and mask in another order give the output in that order."""
    base = Baseline(subject, case)
    order = _order(base, case.q_len).to(base.inputs.query.device)
    base.expect(
        base.run(select_queries(base.inputs, order)),
        f"with queries in the order {order.tolist()}, output",
        "the same query in its place",
        taken=lambda output: output.index_select(-2, order),
    )


@invariant(
    cases=benign,
    min_q_len=2,
    beyond=(Case((1,), 530, 12, mask="boolean_shared"), Case((), 150, 150)),
    variants=_OTHERS,
    applies=any_of(knows_positions, ties("q_len")),
)
def query_alone_equals_query_among_others(subject: Subject, case: Case) -> None:
    """What a query gets does not depend on the other queries."""
    base = Baseline(subject, case)
    row = base.choose(case.q_len) if case.q_len <= 256 else case.q_len - 1
    only = torch.tensor([row], device=base.inputs.query.device)
    # beside queries of another magnitude
    if not case.is_narrow and case.variant("others", "alike") == "larger":
        large = torch.full((case.q_len, 1), _LARGE, device=case.device)
        large[row] = 1.0
        base = base.on(base.inputs.replace(query=base.inputs.query * large.to(base.inputs.query)))
    base.expect(
        base.run(select_queries(base.inputs, only)),
        f"for query {row} alone, output",
        f"the same query among all {case.q_len}",
        taken=lambda output: output.index_select(-2, only),
    )


@invariant(cases=benign, leads=(1, 2, 3), variants=_OTHERS)
def item_alone_equals_item_in_batch(subject: Subject, case: Case) -> None:
    """What an item, or a head of it, gets does not depend on the others of its batch."""
    if max(case.lead) < 2:
        reject("the only item is always alone")
    base = Baseline(subject, case)
    inputs, chosen = base.inputs, [base.choose(size) for size in case.lead]
    alone = index = tuple(slice(i, i + 1) for i in chosen)
    if subject.conventions.per_head:  # whose parameters go with their place
        if len(case.lead) < 2:
            reject("heads are not taken alone")
        alone = (*index[:-1], slice(None))
    # beside an item of another magnitude
    if not case.is_narrow and case.variant("others", "alike") == "larger":
        large = torch.full((*case.lead, 1, 1), _LARGE, device=case.device)
        large[index] = 1.0
        base = base.on(inputs.replace(key=inputs.key * large.to(inputs.key)))
    got = base.run(select_items(inputs, alone))
    *items, head = chosen
    what = f"head {head} of item {items}" if items else f"item {chosen}"
    base.expect(
        got if alone == index else got[..., index[-1], :, :],
        f"for {what} alone, output",
        f"the same one in its batch {list(case.lead)}",
        taken=lambda output: output[index],
    )
