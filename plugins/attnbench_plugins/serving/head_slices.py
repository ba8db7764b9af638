"""The law that heads may be split, as over devices: a slice equals that slice of the whole."""

from __future__ import annotations

from typing import Any

import torch

from attnbench import Case, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import Baseline, benign, grouped, invariant, select_items


def _applies(subject: Subject) -> str | None:
    if subject.conventions.per_head and "head_offset" not in subject.accepts:
        return "its parameters go by head, and it does not accept head_offset"
    return None


def _cases(subject: Subject) -> CaseStrategy:
    masks = ("none", "boolean", "boolean_shared", "padding", "causal", "bias")
    variants: dict[str, Any] = {
        "heads": ("own", "grouped") if "enable_gqa" in subject.accepts else ("own",)
    }
    return benign(
        subject,
        masks=tuple(mask for mask in masks if subject.takes_mask(mask)),
        leads=(2, 3),
        regimes=("normal",),
        drawn_len=17,
        variants=variants,
        beyond=(Case((2, 4), 5, 5), Case((1, 3), 3, 6)),
    )


@invariant(
    hint="something that goes by head is indexed from the first head of the call",
    kinds=("mechanism",),
    cases=_cases,
    applies=_applies,
    law=True,
)
def heads_may_be_split(subject: Subject, case: Case) -> None:
    """A call on some neighbouring heads, with head_offset where it is accepted, gives the outputs
    of these heads among all.
    """
    base = Baseline(subject, case)
    whole, group = base.inputs, 1
    kv_heads = whole.key.shape[-3]
    if case.variant("heads", "own") == "grouped":
        whole, group = grouped(whole), 2
    by_head = {
        name: torch.randn(kv_heads * group, generator=base.generator).to(whole.query)
        for name in ("sinks", "alibi_slopes")
        if name in subject.accepts
    }
    base = base.on(whole.replace(**by_head))
    start = base.choose(kv_heads)
    count = 1 + base.choose(kv_heads - start)
    first, last = start * group, (start + count) * group
    rest = (slice(None),) * (whole.query.dim() - 3)
    part = select_items(whole, (*rest, slice(first, last)))
    keys = select_items(whole, (*rest, slice(start, start + count)))
    part = part.replace(key=keys.key, value=keys.value, valid_lens=whole.valid_lens)
    part = part.replace(**{name: tensor[first:last] for name, tensor in by_head.items()})
    change = f"heads {first} to {last - 1} by themselves"
    if "head_offset" in subject.accepts:
        part, change = part.replace(head_offset=first), f"{change}, with head_offset={first}"
    base.expect(
        base.run(part),
        f"{change}, output",
        f"these heads among all {kv_heads * group}",
        taken=lambda output: output[..., first:last, :, :],
    )
