"""The operation of a layer's call in which tokens or items reach each other that should not.

A call is repeated with other tokens in places that should not count. What it computes for the
places that are kept should be what it was.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.invariants.toolkit.origins import Key, Replay, differ
from attnbench.subject.layer import LayerSubject

_SIZES = ((7, 11, 5), (5, 13, 6))
"""Items, tokens, and the first tokens that are kept: the first two hardly any other axis has."""


@functools.lru_cache(maxsize=256)
def first_mixing(subject: LayerSubject, what: str, masked: bool = False) -> str:
    """A line that names the first operation by which others reach a token or an item.

    Args:
        subject: a layer.
        what: ``items``, ``later`` tokens, or ``padded`` ones.
        masked: whether the call has a mask; what is padded has one.

    Returns:
        Empty unless calls of two lengths show the same.
    """
    try:
        first, *others = (_Mixing(subject, what, masked, *sizes).origin() for sizes in _SIZES)
    except Exception:  # which a check reports
        return ""
    return f"\n  first {first}" if first and {*others} == {first} else ""


class _Mixing:
    """Two calls of a layer, on the same tokens or items and on others.

    Args:
        subject, what, masked: those of :func:`first_mixing`.
        items, tokens, kept: sizes of the batch, and how many of its tokens are kept.
    """

    def __init__(
        self, subject: LayerSubject, what: str, masked: bool, items: int, tokens: int, kept: int
    ) -> None:
        self.items, self.tokens, self.of_items = items, tokens, what == "items"
        self.axis = 0 if self.of_items else 1
        rows = items if self.of_items else 1
        dtype = "float64" if "float64" in subject.dtypes else subject.dtypes[0]
        case = Case((rows,), tokens, tokens, 8, 8, 8, dtype=dtype, seed=kept)
        self.case = subject.legal(case)
        with torch.random.fork_rng(devices=[]):
            self.layer = LayerCase(subject, self.case)
        self.kept = torch.tensor([0, rows - 1]) if self.of_items else torch.arange(kept)
        self.mask = None
        if masked or what == "padded":
            last = kept if what == "padded" else tokens - 2
            self.mask = (torch.arange(tokens) < last).expand(rows, -1)

    def origin(self) -> str:
        """Where others reach the kept places; empty if that cannot be told."""
        hidden = self.layer.hidden
        if hidden.shape[:2] != (self.items if self.of_items else 1, self.tokens):
            return ""
        others = self.layer.other(hidden)
        others.index_copy_(self.axis, self.kept, self._kept(hidden))
        noted = Replay()
        expected = self._called(hidden, noted)

        def right(key: Key, result: Tensor) -> Tensor | None:
            before = noted.results.get(key)
            if before is None or before.shape != result.shape:  # a size follows values
                return None
            return self._put_right(result, before)

        mended = Replay(right)
        if differ(self._called(others, mended), expected):
            return ""
        for key in mended.origins:
            wrong = Replay(functools.partial(_instead, {key: mended.results[key]}))
            if differ(self._called(hidden, wrong), expected):
                return mended.place(key)
        return ""

    def _called(self, hidden: Tensor, mode: Replay) -> Tensor:
        """What the kept places get in a call."""
        with torch.random.fork_rng(devices=[]), mode:
            output = self.layer.run(hidden, self.mask)
        return self._kept(output)

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(self.axis, self.kept)

    def _put_right(self, result: Tensor, before: Tensor) -> Tensor | None:
        """A result with what it was for the kept places; ``None`` if it has no axis of them."""
        if not differ(result, before):
            return result
        size, folded = self.items if self.of_items else self.tokens, self.items * self.tokens
        if size not in result.shape and self.of_items and result.shape[:1] == (folded,):
            shapes = [(self.items, self.tokens), (self.tokens, self.items)]
            read = [
                self._put_right(*(t.reshape(*sizes, -1) for t in (result, before)))
                for sizes in shapes
            ]
            fits = [one.reshape(result.shape) for one in read if one is not None]
            return next(itertools.chain((t for t in fits if not differ(result, t)), fits))
        axes = [axis for axis, count in enumerate(result.shape) if count == size]
        if not axes:
            return None
        place = torch.zeros(result.shape, dtype=torch.bool)
        index = [
            self.kept if axis in axes else torch.arange(n) for axis, n in enumerate(place.shape)
        ]
        place[torch.meshgrid(*index, indexing="ij")] = True
        return torch.where(place.to(result.device), before, result)


def _instead(others: dict[Key, Tensor], key: Key, result: Tensor) -> Tensor:
    return others.get(key, result)
