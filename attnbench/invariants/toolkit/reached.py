"""The operation of a function's call in which others reach a query that should not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.layer_faults import told_once
from attnbench.invariants.toolkit.mixing import SIZES, Mixing, alike
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_Check = Callable[[Subject, Case], None]

_PLACES = {
    "items": (0, ("query", "key", "value")),
    "heads": (-3, ("query", "key", "value")),
    "queries": (-2, ("query",)),
    "hidden keys": (-2, ("key", "value")),
    "later keys": (-2, ("query", "key", "value")),
}
"""The axis of the others, and the tensors that hold them."""


def tells_mixing(*kinds: str, counted: bool = False) -> Callable[[_Check], _Check]:
    """A decorator whose violations end with the first operation by which ``items``, ``heads``,
    ``queries`` or ``keys``, as named, reach an output.

    Their number is asked about where the check compares calls with other numbers of them
    (``counted``): one that only changes what they hold says nothing against its use.
    """

    def told(check: _Check) -> _Check:
        @functools.wraps(check)
        def checked(subject: Subject, case: Case) -> None:
            mask = case.variant("hidden_by", case.mask)
            hidden = "later keys" if mask == "causal" else "hidden keys"
            fitting = [hidden if one == "keys" else one for one in kinds]

            def ask() -> str:
                ways = (True, False) if counted else (True,)
                tried = ((one, is_there) for is_there in ways for one in fitting)
                calls = (first_operation(subject, *one, len(case.lead), mask) for one in tried)
                return next(filter(None, calls), "")

            try:
                check(subject, case)
            except InvariantViolation as violation:
                raise violation.explained(ask) from None

        return checked

    return told


@told_once
def first_operation(subject: Subject, what: str, is_there: bool, rank: int, mask: str) -> str:
    """A line that names it; empty unless calls of two sizes show the same.

    Others are there in both calls, or in one; ``rank`` is the number of leading axes.
    """
    if (what == "heads" and rank < 2) or (what == "later keys" and not is_there):
        return ""
    place = alike(*(_pair(subject, what, is_there, max(rank, 1), mask, *n) for n in SIZES))
    others = what if what.endswith("keys") else f"other {what}"
    counts = f"in which the number of {others} counts"
    how = f"by which {others} reach the outputs" if is_there else counts
    return f"\n  the first operation {how} is {place}" if place else ""


def _pair(
    subject: Subject, what: str, is_there: bool, rank: int, mask: str, few: int, many: int, own: int
) -> Mixing:
    """Two calls, with so many others, or so many keys of which that many are kept."""
    dtype = "float64" if "float64" in subject.dtypes else subject.dtypes[0]
    lead = [few, *[3] * (rank - 1)] if what == "items" else [1] * rank
    lead[-1] = few if what == "heads" else lead[-1]
    (axis, names), of_keys = _PLACES[what], what.endswith("keys")
    q_len = few if what == "queries" else many if of_keys else 3
    case = subject.legal(Case((*lead,), q_len, many, 8, 8, 8, dtype=dtype, seed=own))
    if ([*case.lead], case.q_len, case.kv_len) != (lead, q_len, many):
        raise ValueError("no case of these sizes")
    size, part = (many, (0, own)) if of_keys else (few, (few - 2, 2))
    with torch.random.fork_rng(devices=[]):
        module, whole = subject.build(case)
    whole = _hiding(whole, what, mask, own)
    drawn = torch.Generator().manual_seed(own)

    def other(tensor: Tensor) -> Tensor:
        """The same kept, and others beside it, whose maximum is seldom that of what is kept."""
        noise = 3 * torch.randn(tensor.shape, generator=drawn).to(tensor)
        noise.narrow(axis, *part).copy_(tensor.narrow(axis, *part))
        return noise if is_there else tensor.narrow(axis, *part)

    changed = whole.replace(**{name: other(getattr(whole, name)) for name in names})
    if not is_there and of_keys:
        changed = changed.replace(attn_mask=None, valid_lens=None)
    calls = [
        functools.partial(torch.no_grad()(subject.output), module, one) for one in (whole, changed)
    ]
    return Mixing(calls if is_there else calls[::-1], axis, size, part)


def _hiding(inputs: Inputs, what: str, mask: str, own: int) -> Inputs:
    """The inputs with all keys but the first hidden from as many queries, if keys are."""
    if what == "later keys":
        return inputs.replace(is_causal=True)
    if what != "hidden keys":
        return inputs
    if mask in ("padding", "causal_padding", "lengths_2d"):
        return inputs.replace(valid_lens=torch.full((inputs.query.shape[0],), own))
    of_query, of_key = (torch.arange(t.shape[-2]) for t in (inputs.query, inputs.key))
    shown = (of_key < own) | (of_query >= own)[:, None]
    bias = torch.zeros(shown.shape, dtype=inputs.query.dtype).masked_fill(~shown, -math.inf)
    return inputs.replace(attn_mask=bias if mask == "floating" else shown)
