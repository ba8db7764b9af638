"""Inputs derived from inputs: fewer queries, keys or items, another order, another mask.

If positions change, causality, lengths and mask are combined into one mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import MASKS, Case
from attnbench.cases.case_strategies import CaseStrategy, cases, listed
from attnbench.oracle.references import allowed_and_bias
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs

FREE_MASKS = tuple(mask for mask in MASKS if mask != "empty_row")
"""The kinds of mask in which each query has an allowed key."""


HIDING_MASKS = tuple(mask for mask in FREE_MASKS if mask not in ("none", "bias"))
"""Those of the kinds in :data:`FREE_MASKS` that hide keys."""


def benign(subject: Subject, **narrowed: Any) -> CaseStrategy:
    """Cases in which two correct computations differ by little more than rounding.

    They are small and contiguous, and leave out extreme regimes of values, which have their own
    invariants and magnify rounding until it hides other errors. If scores of keys are nearly equal,
    rounding alone may decide which key a mechanism takes.
    """
    chosen: dict[str, Any] = {
        "masks": FREE_MASKS,
        "layouts": ("contiguous",),
        "regimes": ("normal", "huge"),
        "max_len": 17,
        "drawn_len": 64,
        "max_features": 33,
    }
    return cases(subject, **{**chosen, **narrowed}).map(_unsaturated)


ORDINARY_MASKS = ("none", "boolean", "floating", "padding", "causal")
"""One representative of each sort of mask."""


def ordinary(subject: Subject, **narrowed: Any) -> CaseStrategy:
    """Benign cases with one mask of each sort, for invariants on ways to run a subject."""
    return benign(subject, **{"masks": ORDINARY_MASKS, "regimes": ("normal",), **narrowed})


def hand_picked(*chosen: Case, **variants: Any) -> Callable[[Subject], CaseStrategy]:
    """These cases as a subject takes them; one verdict is enough."""
    return lambda subject: listed(*map(subject.legal, chosen), enough=1, variants=variants)


def _unsaturated(case: Case) -> Case:
    """Replace the regime ``huge`` in half precision, where rounding decides which key wins."""
    if case.regime == "huge" and case.is_narrow:
        return case.replace(regime="normal")
    return case


def has_gradients(subject: Subject, case: Case) -> bool:
    """Whether the gradients of two correct computations can be compared at a case.

    They cannot if a saturated softmax magnifies rounding, or the subject is exempt from gradients.
    """
    wide = case.regime == "normal" and not case.is_narrow and subject.conventions.gradients
    return wide and "gradients_are_right" not in subject.exempt


def has_weights(subject: Subject) -> str | None:
    """The reason why a subject's weights are not available, or ``None`` if they are."""
    if subject.gives_weights:
        return None
    return "neither hands back weights nor declares pools_values"


def explicit(inputs: Inputs) -> Inputs:
    """The same inputs with lengths and causality as one explicit mask ``(*lead, L, S)``."""
    plain = inputs.attn_mask is None and inputs.valid_lens is None and not inputs.is_causal
    if plain and inputs.window_size is None and inputs.alibi_slopes is None:
        return inputs
    allowed, bias = allowed_and_bias(inputs)
    boolean = inputs.attn_mask is None or inputs.attn_mask.dtype == torch.bool
    if boolean and inputs.alibi_slopes is None:
        return with_mask(inputs, allowed)
    return with_mask(inputs, bias.masked_fill(~allowed, -math.inf))


def with_mask(inputs: Inputs, mask: Tensor) -> Inputs:
    """The same inputs with this mask only; a floating one gets the dtype of the query."""
    mask = mask.to(inputs.query.device)
    if mask.is_floating_point():
        mask = mask.to(inputs.query.dtype)
    return inputs.replace(
        attn_mask=mask, valid_lens=None, is_causal=False, window_size=None, alibi_slopes=None
    )


def masks_in_words(inputs: Inputs) -> str:
    """Describe the arguments that hide keys."""
    parts = []
    if inputs.attn_mask is not None:
        kind = "boolean" if inputs.attn_mask.dtype == torch.bool else "floating"
        parts.append(f"a {kind} mask {tuple(inputs.attn_mask.shape)}")
    if inputs.valid_lens is not None:
        dtype = str(inputs.valid_lens.dtype).removeprefix("torch.")
        suffix = "" if dtype == "int64" else f" ({dtype})"
        parts.append(f"valid_lens={inputs.valid_lens.tolist()}{suffix}")
    if inputs.is_causal:
        sizes = f"{inputs.query.shape[-2]} queries and {inputs.key.shape[-2]} keys"
        parts.append(f"is_causal=True ({sizes})")
    return " and ".join(parts)


def unmasked(inputs: Inputs) -> Inputs:
    """The same inputs without any mask."""
    return inputs.replace(attn_mask=None, valid_lens=None, is_causal=False, window_size=None)


def select_queries(inputs: Inputs, rows: Tensor) -> Inputs:
    """Select queries, in this order, with their rows of the mask."""
    inputs, rows = explicit(inputs), rows.to(inputs.query.device)
    mask = inputs.attn_mask
    return inputs.replace(
        query=inputs.query.index_select(-2, rows),
        attn_mask=None if mask is None else mask.index_select(-2, rows),
    )


def select_keys(inputs: Inputs, slots: Tensor) -> Inputs:
    """Select keys and values, in this order, with their columns of the mask."""
    inputs, slots = explicit(inputs), slots.to(inputs.query.device)
    mask = inputs.attn_mask
    return inputs.replace(
        key=inputs.key.index_select(-2, slots),
        value=inputs.value.index_select(-2, slots),
        attn_mask=None if mask is None else mask.index_select(-1, slots),
    )


def leaves_of(module: nn.Module, inputs: Inputs) -> tuple[Inputs, dict[str, Tensor]]:
    """Inputs that require gradients, and all named leaves, including parameters."""
    given = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    named: dict[str, Tensor] = {name: getattr(given, name) for name in given.floating}
    named |= {f"parameter {n}": p for n, p in module.named_parameters() if p.requires_grad}
    return given, named


def only_keys(inputs: Inputs, slots: Tensor) -> Inputs:
    """Select keys and values that no query is prevented from seeing; a finite bias is kept."""
    if inputs.attn_mask is None or inputs.attn_mask.dtype == torch.bool:
        return select_keys(unmasked(inputs), slots)
    inputs = select_keys(inputs, slots)
    assert inputs.attn_mask is not None
    return inputs.replace(attn_mask=inputs.attn_mask.masked_fill(inputs.attn_mask.isinf(), 0.0))


def score_rounding(inputs: Inputs) -> float:
    """The relative error of a weight computed as ``exp(score - logsumexp(scores))``.

    Both terms are rounded relative to their own size, and the difference keeps these errors; a
    product of query and key, or a distance, is no larger than these squares.
    """
    sizes = [float(t.detach().double().square().sum(-1).max()) for t in (inputs.query, inputs.key)]
    eps = min(torch.finfo(inputs.query.dtype).eps, torch.finfo(torch.float32).eps)
    return 4 * eps * max(sizes)


def select_items(inputs: Inputs, index: tuple[slice | Tensor, ...]) -> Inputs:
    """Select items by slices of the leading dimensions; masks and lengths are cut likewise.

    A mask keeps its number of dimensions, so that the subject has to broadcast it.
    """
    if isinstance(inputs, LayerInputs):
        padding = inputs.padding_mask
        padding = padding if padding is None else padding[index]
        return inputs.replace(hidden=inputs.hidden[index], padding_mask=padding)
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
    """Put large values of both signs into key and value of some slots; scores stay finite.

    Args:
        subject: subject whose dtype of computation limits the values.
        inputs: inputs, which are not changed.
        slots: indices of the slots.
    """
    key, value = inputs.key.clone(), inputs.value.clone()
    size, large = _junk(subject, inputs)
    signs = 1.0 - 2.0 * (torch.arange(key.shape[-1], device=key.device) % 2)
    slots = slots.to(key.device)
    key[..., slots, :] = (size * signs).to(key.dtype)
    value[..., slots, :] = large
    return inputs.replace(key=key, value=value)


def _junk(subject: Subject, inputs: Inputs) -> tuple[float, float]:
    """The magnitudes that :func:`with_junk` puts into key and value."""
    most = subject.largest(inputs.value.dtype)
    return 16.0 if most < 2.0**16 else 1024.0, float(most**0.5)


def junk_in_words(subject: Subject, inputs: Inputs) -> str:
    """Describe the values of :func:`with_junk` for a failure."""
    size, large = _junk(subject, inputs)
    return f"±{size:g} as the key and {large:.2g} as the value"


def grouped(inputs: Inputs) -> Inputs:
    """Twice as many heads of the query, each with values of its own."""
    mask, query = inputs.attn_mask, inputs.query.repeat_interleave(2, dim=-3)
    signs = 1.0 - 1.5 * (torch.arange(query.shape[-3], device=query.device) % 2)
    if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
        mask = mask.repeat_interleave(2, dim=-3)
    query = query * signs.to(query.dtype)[:, None, None]
    return inputs.replace(query=query, attn_mask=mask, enable_gqa=True)


def placed_at(places: dict[str, bytearray], inputs: Inputs) -> Inputs:
    """The same values in new tensors at the addresses of earlier ones, as in a reused buffer.

    Args:
        places: the memory of each tensor, which is filled at the first call.
        inputs: inputs of the same shapes and dtypes at every call.
    """
    if inputs.query.device.type != "cpu":
        return inputs

    def placed(name: str) -> Tensor:
        tensor: Tensor = getattr(inputs, name)
        place = places.setdefault(name, bytearray(tensor.numel() * tensor.element_size()))
        there = torch.frombuffer(place, dtype=tensor.dtype, count=tensor.numel())
        return there.view(tensor.shape).copy_(tensor)

    return inputs.replace(**{name: placed(name) for name in ("query", "key", "value")})
