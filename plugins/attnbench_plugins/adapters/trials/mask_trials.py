"""The form of a mask, by which keys or tokens are hidden, as small calls show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.styles import Argument
from attnbench_plugins.adapters.binding import Binding, Fill, Mask
from attnbench_plugins.adapters.trials.argument_values import MASK_AXES
from attnbench_plugins.adapters.trials.found_conventions import hiding
from attnbench_plugins.adapters.trials.small_calls import KEYS, QUERIES, SHOWN, Callee, Calls, close

_SAYS = ("shows", "hides", "ones", "zeros", "added")


def mask_form(callee: Callee, binding: Binding, name: str, lengths: bool = False) -> Mask | None:
    """The form of a mask or of lengths, by which keys or tokens are hidden; ``None`` if none shows.

    Where items have masks of their own and none fits, as one mask for all items shows it: what
    takes each item's mask for another's is wrong, and a check is to say so.
    """
    calls, own = Calls(callee, binding), binding.values.get(name)
    base = None if binding.tokens or "Y" in binding.layout else calls.reach()
    if base is not None and not base.any() and isinstance(own, Fill) and own.boolean:  # hides all
        shown = replace(own, number=1 - (own.number or 0))
        calls = Calls(callee, binding.replace(values={**binding.values, name: shown}))
        base = calls.reach()
    if base is None or (lengths and calls.is_layer):
        return None
    whole, rows = _pattern()[..., : base.shape[-1]], torch.ones_like(base)
    patterns: list[Tensor | None] = [whole, whole[:1].expand(whole.shape)]
    if lengths:
        patterns = [None]
    elif calls.is_layer:
        real = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
        patterns, rows = [real[:, None]], real[:, :, None] & ~torch.eye(QUERIES, dtype=torch.bool)
        if not bool((base & ~real[:, None] & rows).any()):
            return None  # tokens that know nothing of each other show no mask
    exact = (_form(calls, name, base, pattern, rows) for pattern in patterns)
    form = next(filter(None, exact), None) or _leaking(calls, name, patterns[0], rows)
    if form is not None and lengths and not _takes_short_ones(calls, name, form):
        return None
    return form


def _takes_short_ones(calls: Calls, name: str, form: Mask) -> bool:
    """Whether the longest item may be shorter than the keys, as where more items are cut off."""
    ways = [(calls, given) for found, calls, given, _ in _lengths(calls, name) if found == form]
    if not ways:  # it leaks, and so is no form of these
        return True
    other, given = ways[0]
    short: dict[str, Any] = {each: torch.full_like(lens, 2) for each, lens in given.items()}
    return other(**short) is not None


def _pattern() -> Tensor:
    """A mask of a trial: what each query of each item sees."""
    shape = (3, QUERIES, KEYS)
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.6
    seen[..., 0] = True
    seen[..., 1] = False
    return seen


_Forms = Iterator[tuple[Mask, Calls, dict[str, Any], Tensor]]


def _lengths(calls: Calls, name: str) -> _Forms:
    """As :func:`_forms`, of the numbers of keys of each query, or of each item."""
    slots = QUERIES if calls.binding.square else KEYS
    rows = torch.tensor([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3], [2, 2, 7, 7, 1]]).clamp_max(slots)
    ways = [("BL", rows), ("B", torch.tensor([2, 7, 4]).clamp_max(slots))]
    for axes, lens in ways[calls.binding.one_query :]:
        form, roles = Mask(axes, "lengths"), {**calls.binding.roles, name: "lengths"}
        other = Calls(calls.callee, calls.binding.replace(masks={name: form}, roles=roles))
        shown = torch.arange(slots) < lens.reshape(len(lens), -1, 1)
        yield form, other, {"valid_lens": lens}, shown


def _forms(calls: Calls, name: str, pattern: Tensor | None) -> _Forms:
    """The forms that a mask may have, calls with each, what they are given, and what it shows."""
    if pattern is None:
        yield from _lengths(calls, name)
        return
    bound = calls.binding
    roles = {**bound.roles, name: "mask"}
    for axes in sorted(MASK_AXES, key=lambda axes: calls.is_layer and "L" in axes):
        if calls.is_layer and ("B" in axes) != ("B" in bound.layout):
            continue
        if not calls.is_layer and "H" in axes and "H" not in bound.layout:
            continue
        if bound.one_query and "L" in axes:
            continue
        allowed = pattern if "B" in axes or calls.is_layer else pattern[:1]
        allowed = allowed if "L" in axes or bound.one_query or calls.is_layer else allowed[:, :1]
        wide = allowed.unsqueeze(1) if "H" in bound.layout else allowed
        given = {"padding_mask": allowed[:, 0]} if calls.is_layer else {"attn_mask": wide}
        for says in _SAYS:
            form = Mask(axes, says)
            other = Calls(calls.callee, bound.replace(masks={name: form}, roles=roles))
            yield form, other, given, allowed


def _form(
    calls: Calls, name: str, base: Tensor, pattern: Tensor | None, rows: Tensor
) -> Mask | None:
    """The form in which a mask hides what it should, among the slots that are looked at.

    One that only a call of several keys takes, as where axes of one are dropped, is the last.
    """
    plain, found = calls(), None
    for form, other, given, allowed in _forms(calls, name, pattern):
        seen = other.reach(unlike=plain, **given)
        wanted = allowed.expand(base.shape) & base & rows
        if seen is None or not torch.equal(seen & rows, wanted):
            continue
        if pattern is None or _takes_one(other, given):
            return form
        found = found or form
    return found


def _takes_one(calls: Calls, given: Mapping[str, Tensor]) -> bool:
    """Whether a call of one key or token takes its mask, too."""
    bound = calls.binding
    few = 1 if calls.is_layer or bound.square or bound.one_query else QUERIES
    whole: dict[str, Any] = {name: torch.ones_like(mask[..., :1]) for name, mask in given.items()}
    if few == 1 and "attn_mask" in whole:
        whole["attn_mask"] = whole["attn_mask"][..., :1, :]
    return bool(bound.tokens) or calls(calls.tensors(few, 1), **whole) is not None


def _leaking(calls: Calls, name: str, pattern: Tensor | None, rows: Tensor) -> Mask | None:
    """The form in which a mask hides most of what it should, and is bound to fail for the rest.

    A mask that shows everything changes nothing then, and hidden slots lose most of their weight.
    """
    plain, before = calls(), calls.moves()
    best: Mask | None = None
    for form, other, given, allowed in _forms(calls, name, pattern):
        whole = True if pattern is not None else int(rows.shape[-1])
        every: dict[str, Any] = {n: torch.full_like(mask, whole) for n, mask in given.items()}
        shown = other(**every)
        if shown is None or plain is None or before is None or not close(shown, plain):
            continue
        after = other.moves(**given)
        if after is None:
            continue
        left, looked = after / before, rows.expand(before.shape) & (before > SHOWN)
        seen = allowed.expand(before.shape)
        hidden, visible = (left[looked & kind] for kind in (~seen, seen))
        if not len(hidden) or not len(visible):
            continue
        share = float(hidden.median() / visible.median())
        if share < min(_LEAST, best.leaks if best else _LEAST):
            best = replace(form, leaks=share)
    return best


_LEAST = 0.7
"""The share of a hidden slot's effect that may be left where an argument counts as its mask."""


MASKS = ("mask", "memory_mask", "padding", "memory_padding", "lengths")
"""Roles of masks of what takes a query and keys."""


def masked(callee: Callee, binding: Binding, arguments: Sequence[Argument]) -> Binding:
    """A binding with the forms of its masks; of a layer with the first that says padding."""
    is_layer = binding.shape == "layer"
    masks: dict[str, Mask] = {}
    roles, unread = dict(binding.roles), []
    kinds = ("padding", "mask") if is_layer else MASKS
    asked = [argument for argument in arguments if argument.role in kinds]
    for argument in sorted(asked, key=lambda a: kinds.index(str(a.role))) if is_layer else asked:
        if is_layer and masks:
            break
        form = mask_form(callee, binding, argument.name, argument.role == "lengths")
        form = form or _as_named(callee, binding, argument)
        if form is None:
            unread.append(argument.name)
        else:
            masks[argument.name] = form
            roles[argument.name] = argument.role or ""
    left = tuple(name for name in binding.left if name not in masks)
    return binding.replace(masks=masks, roles=roles, left=left, unread=tuple(unread))


def _as_named(callee: Callee, binding: Binding, argument: Argument) -> Mask | None:
    """The form of lengths that hide nothing as they should in any, if calls give an output."""
    if argument.role != "lengths" or binding.shape != "attention":
        return None
    for form in (Mask("BL", "lengths"), Mask("B", "lengths")):
        roles = {**binding.roles, argument.name: "lengths"}
        calls = Calls(callee, binding.replace(masks={argument.name: form}, roles=roles))
        if calls(**(hiding(calls, 2) or {})) is not None:
            return form
    return None
