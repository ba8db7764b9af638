"""Calls of a module on given tokens, behind caches that they leave alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.invariants.caches.stage import Stage
from attnbench.invariants.toolkit.layer_rounding import floor_of

_NEAR, _SAME, _FEWEST = 1e-2, 1e-4, 4


class GivenCalls:
    """Calls of one module on given tokens, which leave the caches that they are given alone.

    Args:
        stage, module: what is called.
        tokens: ``(B, L, E)``, one more than the program has.
        gap: the error that is explained; what is off by much less is right.
    """

    def __init__(self, stage: Stage, module: nn.Module, tokens: Tensor, gap: float) -> None:
        self.stage, self.module, self.tokens, self.gap = stage, module, tokens, gap

    def after(self, cache: Any, past: int, count: int) -> tuple[Tensor, Any]:
        """The output of the next tokens, and the cache after them."""
        chunk = self.tokens[:, past : past + count].clone()
        return self.stage.subject.call(self.module, chunk, None, copy.deepcopy(cache))

    def of_one(self, count: int) -> Any:
        """The cache that one call on the first tokens leaves."""
        cache = self.stage.subject.new_cache(self.module, len(self.tokens))
        return self.after(cache, 0, count)[1] if count else cache

    def is_right(self, cache: Any, past: int, count: int) -> bool:
        """Whether the next tokens get with a cache what they get in one call without one."""
        output, _ = self.after(cache, past, count)
        expected = self.stage.expected(self.tokens[:, : past + count])[:, past:]
        gap = (output - expected).double().abs().nan_to_num(torch.inf)
        return float(gap.amax()) <= max(floor_of(self.stage.subject, expected), self.gap / 8)


def times_in_a_call(single: Tensor, whole: Tensor, cut: Tensor) -> int:
    """How many times a call adds its tokens to a tensor; 0 if it is not added to as slots.

    Args:
        single: the tensor behind one token.
        whole, cut: the same behind two tokens, in one call and in two.
    """
    if single.dim() != whole.dim() or whole.shape != cut.shape:
        return 0
    grown = [a for a in range(whole.dim()) if single.shape[a] != whole.shape[a]]
    count = single.shape[grown[0]] if len(grown) == 1 else 0
    if count < 2 or whole.shape[grown[0]] != 2 * count:
        return 0
    second, own, other = (t.select(grown[0], n) for t, n in ((whole, 1), (cut, count), (cut, 1)))
    return count if _is_near(own, second) and not _is_near(other, second) else 0


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one but for what cut calls may round otherwise."""
    gap, size = (one.double() - other.double()).abs(), other.double().abs()
    return bool(gap.max() <= _NEAR * size.max())


def kept_of_earlier(held: Tensor, one: Tensor, last: Tensor) -> str:
    """What a call keeps of what a tensor held before, where that is wrong in a simple way.

    Args:
        held, one: the tensor behind two calls, and behind one on the tokens of both.
        last: the same behind a first call on the tokens of the second alone.
    """
    if not held.shape == one.shape == last.shape or not held.is_floating_point():
        return ""
    own, right = (t.double() - last.double() for t in (held, one))
    size = right.abs().amax()
    if own.abs().amax() <= _SAME * size:
        what = "a first call on the last tokens alone leaves"
        return f"; it is what {what}: what was there before is lost"
    for axis in range(held.dim()):
        mine, its = (tensor.movedim(axis, 0).flatten(1) for tensor in (own, right))
        factors = (mine * its).sum(1) / its.square().sum(1)
        gap = (mine - factors[:, None] * its).abs().amax()
        if mine.shape[1] >= _FEWEST and gap <= _SAME * own.abs().amax():
            ends = dict.fromkeys(f"{float(end):.4g}" for end in (factors.amin(), factors.amax()))
            more = f"what was there before counts {' to '.join(ends)} times as much as it should"
            return f"; what the last call adds to it is right, and {more}"
    return ""


def unwritten_axis(new: Tensor | None, held: Tensor, count: int) -> int | None:
    """The axis along which only the first slots are other than in a new cache, if there is one."""
    if new is None or new.shape != held.shape:
        return None
    for axis in range(held.dim()):
        written = (new != held).movedim(axis, 0).flatten(1).any(1).nonzero().flatten()
        if held.shape[axis] > count and written.tolist() == [*range(count)]:
            return axis
    return None
