"""What a crop does to a cache: it cuts what belongs to no token, or leaves what it should cut."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attnbench.invariants.caches.cache_parts import tensors_of
from attnbench.invariants.caches.given_calls import GivenCalls
from attnbench.invariants.caches.row_selection import after_calls
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.invariants.toolkit.origins import differ

CUTS, LEAVES, KEEPS = (
    ", whose size does not go with the tokens",
    "as it was",
    "and should leave the first",
)
"""What is told of a tensor that a crop cuts, leaves, or takes the wrong slots of."""

_CROPS = ((4, 2), (6, 3), (9, 1))
"""Tokens of a first call, and those that are left of them."""


def left_by_crop(stage: Stage, found: FoundError) -> str:
    """A sentence on what a crop does to tensors that, put right, make the next call right."""
    for total, count in _CROPS:
        module, held = after_calls(stage, 1, total)
        calls = GivenCalls(stage, module, stage.tokens[:1], found.gap)
        before = {place: tensor.clone() for place, tensor in tensors_of(held)}
        one, cropped = calls.of_one(count), stage.subject.crop(held, count)
        if calls.is_right(cropped, count, 1) or not calls.is_right(one, count, 1):
            continue
        texts, rights, others = dict[str, str](), dict[str, Tensor](), dict(tensors_of(one))
        for place, own in tensors_of(cropped):
            if place in before and place in others and not _same(own, others[place]):
                texts[place] = _told(place, before[place], own, others[place])
                rights[place] = (before if texts[place].endswith(CUTS) else others)[place]
        for place in tuple(texts):  # a slot that is never read again may hold what it did
            if calls.is_right(_with(cropped, {**rights, place: None}), count, 1):
                del texts[place], rights[place]
        if texts and all(texts.values()) and calls.is_right(_with(cropped, rights), count, 1):
            what = f"{' and '.join(texts.values())}: with that put right the next call is right"
            return f"\n  behind a call on {total} tokens, crop to {count} {what}"
    return ""


def _with(cache: Any, rights: Mapping[str, Tensor | None]) -> Any:
    """A copy of a cache with other tensors in some places."""
    mended = copy.deepcopy(cache)
    for place, own in tensors_of(mended):
        right = rights.get(place)
        if right is not None:
            own.data = right.clone()
    return mended


def _told(place: str, before: Tensor, own: Tensor, right: Tensor) -> str:
    """What a crop did to a tensor; empty if it is nothing simple."""
    if before.shape == right.shape != own.shape:
        return f"cuts {place} from {tuple(before.shape)} to {tuple(own.shape)}{CUTS}"
    if _same(before, own):
        return f"leaves {place} {tuple(own.shape)} {LEAVES}"
    if before.dim() != own.dim():
        return ""
    cut = [n for n in range(own.dim()) if own.shape[n] != before.shape[n]]
    count = own.shape[cut[0]] if len(cut) == 1 else 0
    for start in range(before.shape[cut[0]] - count + 1) if count else ():
        if _same(before.narrow(cut[0], start, count), own):
            which = f"slots {start} to {start + count - 1}" if count > 1 else f"slot {start}"
            least = f"{right.shape[cut[0]]} of {before.shape[cut[0]]}"
            return f"leaves {which} of {place}, {KEEPS} {least}"
    return ""


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and not (one.numel() and differ(one, other))
