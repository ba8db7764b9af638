"""Invariants on symmetry: order, company and the shape of leading sizes do not matter."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnbench.cases import Case
from attnbench.hookspecs import hookimpl
from attnbench.invariants.compare import reject, same
from attnbench.invariants.deriving import (
    benign,
    build,
    generator,
    output,
    resizes,
    select_items,
    select_queries,
)
from attnbench.specs import Invariant
from attnbench.subject import Subject


def _query_alone(subject: Subject, case: Case) -> None:
    module, inputs = build(subject, case)
    whole = output(subject, module, inputs)
    row = int(torch.randint(case.q_len, (), generator=generator(case)))
    rows = torch.tensor([row])
    same(
        output(subject, module, select_queries(inputs, rows)),
        whole.index_select(-2, rows),
        f"query {row} alone: output",
        f"the same query among {case.q_len}",
        subject=subject,
        module=module,
        inputs=inputs,
        taken=lambda tensor: tensor.index_select(-2, rows),
    )


def _item_alone(subject: Subject, case: Case) -> None:
    module, inputs = build(subject, case)
    whole = output(subject, module, inputs)
    source = generator(case)
    index = tuple(
        slice(i, i + 1)
        for i in (int(torch.randint(size, (), generator=source)) for size in case.lead)
    )
    alone = ", ".join(str(cut.start) for cut in index)
    same(
        output(subject, module, select_items(inputs, index)),
        whole[index],
        f"item [{alone}] alone: output",
        f"the same item in a batch {case.lead}",
        subject=subject,
        module=module,
        inputs=inputs,
        taken=lambda tensor: tensor[index],
    )


def _many(case: Case) -> Case:
    if max(case.lead) < 2:
        reject("one item is always alone")
    return case


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on symmetry."""
    yield Invariant(
        name="query_alone_equals_query_among_others",
        statement="What a query gets does not depend on the other queries.",
        check=_query_alone,
        cases=lambda subject: benign(subject, min_q_len=2),
        applies=lambda subject: resizes(subject, "q_len"),
    )
    yield Invariant(
        name="item_alone_equals_item_in_batch",
        statement="What an item gets does not depend on the other items of its batch.",
        check=lambda subject, case: _item_alone(subject, _many(case)),
        cases=lambda subject: benign(subject, leads=(1, 2, 3)),
    )
