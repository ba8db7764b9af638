"""Inputs made from inputs: fewer queries, fewer keys, fewer items, another order, another mask.

What is derived has causality, lengths and mask folded into one mask where a position has changed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import MASKS, Case
from attnbench.cases.spaces import cases
from attnbench.oracle.references import allowed_and_bias
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = [
    "FREE_MASKS",
    "HIDING_MASKS",
    "ORDINARY_MASKS",
    "benign",
    "explicit",
    "has_gradients",
    "has_weights",
    "junk_in_words",
    "leaves_of",
    "only_keys",
    "ordinary",
    "resizes",
    "score_rounding",
    "select_items",
    "select_keys",
    "select_queries",
    "unmasked",
    "with_junk",
    "with_mask",
]

FREE_MASKS = tuple(mask for mask in MASKS if mask != "empty_row")
"""The kinds of mask that leave each query a key."""

_HALF = ("bfloat16", "float16")

HIDING_MASKS = tuple(mask for mask in FREE_MASKS if mask not in ("none", "bias"))
"""Those of them that hide keys."""


def benign(subject: Subject, **narrowed: Any) -> SearchStrategy[Case]:
    """Cases in which two right computations of one thing differ by little more than rounding.

    Small, contiguous, and without the regimes that are about numbers: those have invariants of
    their own, and magnify a difference in rounding until it hides what is looked for here. Between
    keys whose scores are nearly equal, rounding alone may decide which one a mechanism takes.
    """
    chosen: dict[str, Any] = {
        "masks": FREE_MASKS,
        "layouts": ("contiguous",),
        "regimes": ("normal", "huge"),
        "max_len": 17,
        "drawn_len": 64,
        "max_features": 33,
    }
    return cases(subject, **{**chosen, **narrowed}).map(_unsaturated)  # type: ignore[no-any-return]


ORDINARY_MASKS = ("none", "boolean", "floating", "padding", "causal")
"""One kind of mask of each sort."""


def ordinary(subject: Subject, **narrowed: Any) -> SearchStrategy[Case]:
    """Benign cases of one mask of each sort, for how a subject is run: the rest says no more."""
    return benign(subject, **{"masks": ORDINARY_MASKS, "regimes": ("normal",), **narrowed})


def _unsaturated(case: Case) -> Case:
    """Not huge in half precision, where the rounding of a score decides which key wins."""
    if case.regime == "huge" and case.dtype in _HALF:
        return case.replace(regime="normal")
    return case


def has_gradients(subject: Subject, case: Case) -> bool:
    """Whether the gradients of two right computations of one thing can be compared at a case.

    Not where a saturated softmax magnifies rounding, and not of a subject that is exempt from them.
    """
    wide = case.regime == "normal" and case.dtype not in _HALF and subject.conventions.gradients
    return wide and "gradients_are_right" not in subject.exempt


def has_weights(subject: Subject) -> str | None:
    """Why nothing can be said of a subject's weights; ``None`` if they can be had."""
    if subject.gives_weights:
        return None
    return "neither hands back weights nor declares pools_values"


def resizes(subject: Subject, *names: str) -> str | None:
    """Why a size cannot be changed alone; ``None`` if it can.

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
                    f"{name} cannot be chosen alone: q_len={case.q_len}, kv_len={case.kv_len} "
                    f"is not legal, q_len={got.q_len}, kv_len={got.kv_len} is"
                )
    return None


def explicit(inputs: Inputs) -> Inputs:
    """The same inputs with lengths and causality written out as one mask ``(*lead, L, S)``."""
    plain = inputs.attn_mask is None and inputs.valid_lens is None and not inputs.is_causal
    if plain and inputs.window_size is None and inputs.alibi_slopes is None:
        return inputs
    allowed, bias = allowed_and_bias(inputs)
    boolean = inputs.attn_mask is None or inputs.attn_mask.dtype == torch.bool
    if boolean and inputs.alibi_slopes is None:
        return with_mask(inputs, allowed)
    return with_mask(inputs, bias.masked_fill(~allowed, -math.inf))


def with_mask(inputs: Inputs, mask: Tensor) -> Inputs:
    """The same inputs with this mask alone, a floating one in the dtype of the query."""
    mask = mask.to(inputs.query.device)
    if mask.is_floating_point():
        mask = mask.to(inputs.query.dtype)
    return inputs.replace(
        attn_mask=mask, valid_lens=None, is_causal=False, window_size=None, alibi_slopes=None
    )


def unmasked(inputs: Inputs) -> Inputs:
    """The same inputs without any mask."""
    return inputs.replace(attn_mask=None, valid_lens=None, is_causal=False, window_size=None)


def select_queries(inputs: Inputs, rows: Tensor) -> Inputs:
    """Only these queries, in this order, with the rows of the mask that belong to them."""
    inputs, rows = explicit(inputs), rows.to(inputs.query.device)
    mask = inputs.attn_mask
    return inputs.replace(
        query=inputs.query.index_select(-2, rows),
        attn_mask=None if mask is None else mask.index_select(-2, rows),
    )


def select_keys(inputs: Inputs, slots: Tensor) -> Inputs:
    """Only these keys and values, in this order, with the columns of the mask."""
    inputs, slots = explicit(inputs), slots.to(inputs.query.device)
    mask = inputs.attn_mask
    return inputs.replace(
        key=inputs.key.index_select(-2, slots),
        value=inputs.value.index_select(-2, slots),
        attn_mask=None if mask is None else mask.index_select(-1, slots),
    )


def leaves_of(module: nn.Module, inputs: Inputs) -> tuple[Inputs, dict[str, Tensor]]:
    """Inputs that require gradients, and all that a gradient may be taken by, with names."""
    given = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    named: dict[str, Tensor] = {name: getattr(given, name) for name in given.floating}
    named |= {f"parameter {n}": p for n, p in module.named_parameters() if p.requires_grad}
    return given, named


def only_keys(inputs: Inputs, slots: Tensor) -> Inputs:
    """Only these keys and values, hidden from no query; a finite bias stays."""
    if inputs.attn_mask is None or inputs.attn_mask.dtype == torch.bool:
        return select_keys(unmasked(inputs), slots)
    inputs = select_keys(inputs, slots)
    assert inputs.attn_mask is not None
    return inputs.replace(attn_mask=inputs.attn_mask.masked_fill(inputs.attn_mask.isinf(), 0.0))


def score_rounding(inputs: Inputs) -> float:
    """What a weight made as ``exp(score - logsumexp(scores))`` may be off by, relative to itself.

    Both are rounded by their own size, of which the difference keeps the errors; a product of query
    and key, or a distance, is no larger than these squares.
    """
    sizes = [float(t.detach().double().square().sum(-1).max()) for t in (inputs.query, inputs.key)]
    eps = min(torch.finfo(inputs.query.dtype).eps, torch.finfo(torch.float32).eps)
    return 4 * eps * max(sizes)


def select_items(inputs: Inputs, index: tuple[slice, ...]) -> Inputs:
    """Only some items, by slices of the leading dimensions; masks and lengths are cut likewise.

    A mask keeps the shape in which it was given, so that it is the subject that broadcasts it.
    """
    mask, lens = inputs.attn_mask, inputs.valid_lens
    if mask is not None:
        missing = inputs.query.dim() - mask.dim()
        mask = mask[
            tuple(
                slice(None) if mask.shape[axis - missing] == 1 else cut
                for axis, cut in enumerate(index)
                if axis >= missing
            )
        ]
    return inputs.replace(
        query=inputs.query[index],
        key=inputs.key[index],
        value=inputs.value[index],
        attn_mask=mask,
        valid_lens=lens if lens is None else lens[index[0]],
    )


def with_junk(subject: Subject, inputs: Inputs, slots: Tensor) -> Inputs:
    """Large values of both signs in key and value of some slots; their scores stay finite.

    Args:
        subject: they are within the range of what it computes in.
        inputs: are left as they are.
        slots: indices.
    """
    key, value = inputs.key.clone(), inputs.value.clone()
    size, large = _junk(subject, inputs)
    signs = 1.0 - 2.0 * (torch.arange(key.shape[-1], device=key.device) % 2)
    slots = slots.to(key.device)
    key[..., slots, :] = (size * signs).to(key.dtype)
    value[..., slots, :] = large
    return inputs.replace(key=key, value=value)


def _junk(subject: Subject, inputs: Inputs) -> tuple[float, float]:
    """The sizes of what :func:`with_junk` puts into key and value."""
    most = subject.largest(inputs.value.dtype)
    return 16.0 if most < 2.0**16 else 1024.0, float(most**0.5)


def junk_in_words(subject: Subject, inputs: Inputs) -> str:
    """What :func:`with_junk` puts in, as a failure tells it."""
    size, large = _junk(subject, inputs)
    return f"±{size:g} as the key and {large:.2g} as the value"
