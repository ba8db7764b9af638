"""Styles of call: which one fits a target, and the specs and tensors of those that adapt one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling import STYLES
from attnbench.distributions import advice, named_by_plugin
from attnbench.errors import StyleError, UnknownNameError, nearest
from attnbench.registry.catalog import registry
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec, Style

LAYOUTS = {"sdpa": ("BHLE", "BHSE"), "flash": ("BLHE", "BSHE")}
"""Axes of query and key in the styles of functions."""


_OWN = "by the adapter: it tests the adapter and not the callee; --invariant with its name runs it"
UNASKED = dict.fromkeys(("compiled_equals_eager", "copies_agree", "vmap_equals_batch"), _OWN)
"""Invariants that would test the adapter; run only if they are named."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedSpec(MechanismSpec):
    """A mechanism that an adapter made of a callee.

    Args:
        style: name of the adapter.
        callee: the function or module that is called.
        unasked: invariants that would test the adapter; exempt unless they are named.
        notes: what the adapter found out by calling, for the report's first line.
        idle_dropout: whether it takes a share to drop, and is made with none.
    """

    style: str
    callee: Any = None
    unasked: frozenset[str] = frozenset(UNASKED)
    notes: tuple[str, ...] = ()
    idle_dropout: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundScoring(ScoringSpec):
    """A scoring function of which small calls showed how it is called; with notes as above."""

    style: str = "spec_of"
    notes: tuple[str, ...] = ()


def name_of(callee: Any) -> str:
    """A name for a subject: that of the function or class, or of a module's class."""
    name = getattr(callee, "__name__", None) or getattr(callee, "func", callee)
    text = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    return re.sub(r"\W", "", text) or "callee"


def adapted_spec(
    style: str,
    callee: Any,
    known: Mapping[str, Any],
    given: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> MechanismSpec:
    """Make the spec of an adapter from the fields that it knows and those given by its caller.

    Args:
        style: name of the adapter.
        callee: the function or module that is called.
        known: fields that the adapter knows; ``conventions`` and ``exempt`` are merged with the
            given ones.
        given: fields from the adapter's caller, which override the known ones.
        notes: what the adapter found out by calling.
    """
    fields: dict[str, Any] = {"name": name_of(callee), **known, **given}
    for name in ("conventions", "exempt"):
        fields[name] = {**known.get(name, {}), **given.get(name, {})}
    fields["exempt"] = {**UNASKED, **fields["exempt"]}
    fields["notes"] = (*fields.get("notes", ()), *notes)
    return AdaptedSpec(style=style, callee=callee, **fields)


def fold_heads(tensor: Tensor, *, heads: bool = False) -> Tensor:
    """Reshape ``(*lead, n, E)`` to ``(B, H, n, E)``; a single leading size is B, or H if asked."""
    lead = tensor.shape[:-2]
    if len(lead) == 2:
        return tensor
    if len(lead) == 1:
        return tensor.unsqueeze(0 if heads else 1)
    if not lead:
        return tensor[None, None]
    return tensor.flatten(0, -4)


def unfold_heads(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Reshape ``(B, H, n, E)`` to ``(*lead, n, E)``, or leave it if the numbers of items differ."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 4 or len(lead) == 2:
        return tensor
    wanted = (*lead, *tensor.shape[-2:])
    count = tensor.shape[0] * tensor.shape[1]
    return tensor.reshape(wanted) if torch.Size(lead).numel() == count else tensor


def fold_mask_heads(mask: Tensor, lead: tuple[int, ...], *, heads: bool = False) -> Tensor:
    """Reshape a mask that broadcasts to ``(*lead, L, S)`` to broadcast to ``(B, H, L, S)``."""
    if mask.dim() == 2 or (len(lead) == 2 and mask.dim() == 4):
        return mask
    mask = mask.reshape(*[1] * (len(lead) + 2 - mask.dim()), *mask.shape)
    if len(lead) <= 2:
        return fold_heads(mask, heads=heads)
    own = mask.shape[:-3]
    if all(size == 1 for size in own):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4)


def with_causality(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Combine a mask with causality aligned to the top left, like ``is_causal``."""
    q_len, kv_len = query.shape[-2], key.shape[-2]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=mask.device).tril()
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))


def known_style(target: object) -> str | None:
    """The style of an object that is known exactly; ``None`` for all else."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return "sdpa"
    if getattr(target, "__module__", "") == "torch.nn.attention.flex_attention":
        return "flex" if getattr(target, "__name__", "") == "flex_attention" else None
    is_multihead = target is nn.MultiheadAttention or type(target) is nn.MultiheadAttention
    return "multihead" if is_multihead else None


def adapted(target: Any, style: str | None = None, **fields: Any) -> Any:
    """The spec of what is no spec itself.

    Args:
        target: a function, a module or a class.
        style: how it is called, perhaps with its arguments' own names in brackets, as
            ``sdpa(queries=query)``; by default that of an object known exactly.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        UnknownNameError: there is no such style.
        StyleError: it does not fit.
    """
    style, bracket, call = (style or "").partition("(")
    if not callable(target) and style in ("", *STYLES):  # a plugin's may call a method
        raise StyleError(f"{target!r} is of type {type(target).__name__}, which is not callable.")
    style = style or known_style(target) or ""
    brought = {each.name: each for each in registry().all_of(Style)}
    if style not in STYLES and style not in brought:
        known = advice(f"adapters.{style}") or (
            f"{nearest(style, [*STYLES, *brought])} What is called in another way gets a spec: "
            "attnbench.MechanismSpec(name=..., make=...)."
        )
        raise UnknownNameError(f"no style is called {style!r}. {known}")
    if bracket:
        fields["call"] = f"f({call}"
    if style in STYLES:
        adapt = named_by_plugin(f"adapters.{style}")
    else:
        if (reason := brought[style].fits(target)) is not None:
            raise StyleError(f"{name_of(target)} cannot be called as {style}: {reason}.")
        adapt = brought[style].adapt
    made = adapt(target, **fields)
    if not isinstance(made, MechanismSpec | LayerSpec | ScoringSpec):
        raise StyleError(f"the style {style!r} gave {type(made).__name__}, which is no spec.")
    return made
