"""Inputs made from inputs: fewer queries, fewer keys, fewer items, another order, another mask.

An invariant compares the outputs of two sets of inputs, one of which is derived from the other.
What is derived has causality, lengths and mask folded into one mask where position has changed.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from attnbench.cases import MASKS, Case
from attnbench.errors import UsageError
from attnbench.inputs import Inputs
from attnbench.invariants.compare import reject
from attnbench.specs import MechanismSpec
from attnbench.strategies import cases
from attnbench.subject import Subject

__all__ = [
    "FREE_MASKS",
    "all_keys_free",
    "benign",
    "build",
    "explicit",
    "generator",
    "output",
    "resizes",
    "select_items",
    "select_keys",
    "select_queries",
    "with_mask",
]

FREE_MASKS = tuple(mask for mask in MASKS if mask != "empty_row")
"""The kinds of mask that leave each query a key."""

_HALF = ("bfloat16", "float16")


def benign(subject: Subject, **narrowed: Any) -> SearchStrategy[Case]:
    """Cases in which two right computations of one thing differ by little more than rounding.

    Small, contiguous, and without the regimes that are about numbers: those have invariants of
    their own, and magnify a difference in rounding until it hides what is looked for here.
    """
    chosen: dict[str, Any] = {
        "masks": FREE_MASKS,
        "layouts": ("contiguous",),
        "regimes": ("normal", "huge", "tiny", "equal_keys"),
        "max_len": 17,
        "max_features": 33,
    }
    return cases(subject, **{**chosen, **narrowed})


def build(subject: Subject, case: Case) -> tuple[nn.Module, Inputs]:
    """Module and inputs of a case; rejects saturated softmax in half precision.

    There a score's rounding alone decides which key wins.
    """
    if case.regime == "huge" and case.dtype in _HALF:
        reject("in half precision rounding decides which key wins")
    return subject.build(case)


def output(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The subject's output; rejects what a kernel says that it cannot run."""
    if isinstance(subject.spec, MechanismSpec):
        return subject.output(module, inputs)
    try:
        return subject.output(module, inputs)
    except UsageError as error:
        if subject.kind != "kernel":
            raise
        reject(str(error))


def generator(case: Case) -> torch.Generator:
    """For what a check chooses itself; never the numbers that the inputs are drawn with."""
    return torch.Generator().manual_seed(case.seed + 2**32)


def resizes(subject: Subject, *names: str) -> str | None:
    """Why sizes cannot be changed one at a time; ``None`` if they can.

    Args:
        subject: some mechanisms tie ``q_len`` to ``kv_len``, or fix one of them.
        names: of the sizes that an invariant changes.
    """
    for name in names:
        for size in (1, 2, 3, 5):
            case = Case(q_len=4, kv_len=4).replace(**{name: size})
            got = subject.legal(case)
            if (got.q_len, got.kv_len) != (case.q_len, case.kv_len):
                return (
                    f"{name} cannot be chosen freely: q_len={case.q_len}, kv_len={case.kv_len} "
                    f"becomes {got.q_len}, {got.kv_len}"
                )
    return None


def explicit(inputs: Inputs) -> Inputs:
    """The same inputs with lengths and causality written out as one mask ``(*lead, L, S)``."""
    mask = inputs.mask.as_tensor()
    if mask is None:
        return inputs.replace(valid_lens=None, is_causal=False)
    return with_mask(inputs, mask)


def with_mask(inputs: Inputs, mask: Tensor | None) -> Inputs:
    """The same inputs with this mask alone, expanded to ``(*lead, L, S)``."""
    if mask is not None:
        mask = mask.expand(*inputs.query.shape[:-1], inputs.key.shape[-2]).contiguous()
        if mask.is_floating_point():
            mask = mask.to(inputs.query.dtype)
    return inputs.replace(attn_mask=mask, valid_lens=None, is_causal=False)


def all_keys_free(inputs: Inputs) -> Inputs:
    """The same inputs without any mask."""
    return inputs.replace(attn_mask=None, valid_lens=None, is_causal=False)


def select_queries(inputs: Inputs, rows: Tensor) -> Inputs:
    """Only these queries, in this order, with the rows of the mask that belong to them."""
    inputs = explicit(inputs)
    mask = inputs.attn_mask
    return inputs.replace(
        query=inputs.query.index_select(-2, rows),
        attn_mask=None if mask is None else mask.index_select(-2, rows),
    )


def select_keys(inputs: Inputs, slots: Tensor) -> Inputs:
    """Only these keys and values, in this order, with the columns of the mask."""
    inputs = explicit(inputs)
    mask = inputs.attn_mask
    return inputs.replace(
        key=inputs.key.index_select(-2, slots),
        value=inputs.value.index_select(-2, slots),
        attn_mask=None if mask is None else mask.index_select(-1, slots),
    )


def select_items(inputs: Inputs, index: tuple[slice, ...]) -> Inputs:
    """Only some items, by slices of the leading dimensions; masks and lengths are cut likewise.

    A mask keeps the shape in which it was given, so that it is the subject that broadcasts it.
    """
    rank = inputs.query.dim() - 2
    mask, lens = inputs.attn_mask, inputs.valid_lens
    if mask is not None:
        missing = inputs.query.dim() - mask.dim()
        cuts = tuple(
            slice(None) if mask.shape[axis - missing] == 1 else cut
            for axis, cut in enumerate(index)
            if axis >= missing
        )
        mask = mask[cuts]
    if lens is not None and rank:
        lens = lens[index[0]]
    return inputs.replace(
        query=inputs.query[index],
        key=inputs.key[index],
        value=inputs.value[index],
        attn_mask=mask,
        valid_lens=lens,
    )
