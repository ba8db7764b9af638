"""The operation of a call in which tokens, keys, heads or items reach others that should not.

Two calls agree on some of their tokens or items. What they compute for these should be the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.invariants.toolkit.layer_faults import told_once
from attnbench.invariants.toolkit.origins import Correction, Key, differ
from attnbench.subject.layer import LayerSubject

SIZES = ((7, 11, 5), (5, 13, 6))
"""Items, tokens, and the first tokens that are kept: the first two hardly any other axis has."""


_OTHERS = {
    "items": "other items",
    **dict.fromkeys(("later", "number"), "later tokens"),
    **dict.fromkeys(("padded", "padding", "left", "left_padded"), "padded tokens"),
}

_Calls = Sequence[Callable[[], Tensor]]
_REDUCES = re.compile(
    r"(sum|mean|amax|max|amin|min|logsumexp|var|std|var_mean|linalg_vector_norm) "
)
"""Operations that make one number of several, which no later one can take apart."""


@told_once
def first_mixing(subject: LayerSubject, what: str, masked: bool = False) -> str:
    """A line that names the first operation by which others reach a token or an item.

    Args:
        subject: a layer.
        what: others that should not count: ``items``, ``later`` tokens, the ``number`` of these,
            ``padded`` ones, or ``padding`` that is there or not, or the same at the ``left``
            or ``left_padded``.
        masked: whether calls on later tokens have a mask.

    Returns:
        Empty unless calls of two lengths show the same; with the only outputs that are reached.
    """
    calls = [_of_layer(subject, what, masked, *sizes) for sizes in SIZES]
    place = alike(*calls)
    told = f"\n  the first operation by which {_OTHERS[what]} reach the outputs is {place}"
    return calls[0].reached() + told * bool(place)


def alike(one: Mixing, other: Mixing) -> str:
    """The operation that two pairs of calls of different sizes name; empty unless it is one."""
    longer = _more_tokens(one, other)
    first, second = (each.origin(longer) for each in (one, other))
    return first.removeprefix("in ") if first == second else ""


def raise_mixing(
    layer: LayerCase, violation: InvariantViolation | None, what: str, masked: bool = False
) -> None:
    """Raise a violation, if there is one, with the operation in which others reach an output."""
    if violation is not None:
        raise violation.reworded(f"{violation}{first_mixing(layer.subject, what, masked)}")


def _more_tokens(one: Mixing, other: Mixing) -> frozenset[int]:
    """How much longer axes of tokens are than the sequence, as with tokens of a memory in front."""
    if one.axis == 0:
        return frozenset()
    pairs = [
        (a, b)
        for key, result in one.noted.results.items()
        if key in other.noted.results
        for a, b in zip(result.shape, other.noted.results[key].shape, strict=False)
    ]
    more = {a - one.size for a, b in pairs if b - a == other.size - one.size}
    return frozenset(n for n in more if n > 0 and one.is_before(n))


def _of_layer(
    subject: LayerSubject, what: str, masked: bool, items: int, tokens: int, kept: int
) -> Mixing:
    """Two calls of a layer with so many items, or tokens, of which so many are kept."""
    rows, dtype = (items if what == "items" else 1), subject.dtypes[0]
    dtype = "float64" if "float64" in subject.dtypes else dtype
    case = subject.legal(Case((rows,), tokens, tokens, 8, 8, 8, dtype=dtype, seed=kept))
    with torch.random.fork_rng(devices=[]):
        layer = LayerCase(subject, case)
    hidden, mask = layer.hidden, None
    if hidden.shape[:2] != (rows, tokens):
        raise ValueError(f"no case of {rows} items of {tokens} tokens")
    axis, size, part = (0, items, (items - 2, 2)) if what == "items" else (1, tokens, (0, kept))
    if what.startswith("left"):
        part = (tokens - kept, kept)
    if masked or "pad" in what or what == "left":
        mask = (torch.arange(tokens) < (tokens - 2 if masked else kept)).expand(rows, -1)
        mask = mask.flip(1) if what.startswith("left") else mask
    others = 3 * layer.other(hidden)  # whose maximum is seldom that of what is kept
    others.narrow(axis, *part).copy_(hidden.narrow(axis, *part))
    calls = ((hidden, mask), (others, mask))
    if what in ("padding", "number", "left"):
        own = None if mask is None else mask.narrow(1, *part)
        calls = ((hidden.narrow(1, *part), own), (hidden, mask))
    return Mixing([functools.partial(layer.run, *call) for call in calls], axis, size, part)


class Mixing:
    """Two calls on tokens, keys or items that are kept, and on others beside them.

    Args:
        calls: the right and the wrong one, which has others that it should not read.
        axis: of the inputs, 0 for items.
        size: how many there are along it, which no other axis has.
        part: the first of those that are kept, and their number.
    """

    def __init__(self, calls: _Calls, axis: int, size: int, part: tuple[int, int]) -> None:
        self.calls, self.axis, self.size = calls, axis, size
        self.start, self.kept = part
        self.longer = frozenset[int]()
        self.noted = Correction()
        self.others = Correction()
        self.expected, self.got = self._called(0, self.noted), self._called(1, self.others)

    def part(self, tensor: Tensor, axes: tuple[int, ...] | None = None) -> Tensor:
        """What a tensor holds for what is kept, along the axes of that number."""
        for axis in (self.axis,) if axes is None else axes:
            if self.is_of_tokens(tensor.shape[axis]):
                count = self.kept + tensor.shape[axis] - self.size
                tensor = tensor.narrow(axis, self.start, count)
        return tensor

    def is_of_tokens(self, count: int) -> bool:
        """Whether an axis of that size is of items, or of tokens and what is before them."""
        return count == self.size or count - self.size in self.longer

    def is_before(self, more: int) -> bool:
        """Whether the first result with so many more tokens has them before those that are kept."""
        for key, result in self.noted.results.items():
            if self.size + more in result.shape and key in self.others.results:
                axis, other = result.shape.index(self.size + more), self.others.results[key]
                one, two = (t.narrow(axis, 0, self.kept + more) for t in (result, other))
                return not differ(one, two)
        return False

    def reached(self) -> str:
        """The outputs that are reached, if they are some of those of the kept tokens."""
        if self.axis == 0 or self.start:
            return ""
        found = [n for n in range(self.kept) if differ(self.got[:, n], self.expected[:, n])]
        few = len(found) < self.kept / 2 and ", ".join(map(str, found))
        whole = f"of outputs 0 to {self.kept - 1} in front of other tokens"
        return f"\n  {whole}, only {few} changes" if few else ""

    def origin(self, longer: frozenset[int]) -> str:
        """Where others reach what is kept; empty if that cannot be told."""
        self.longer = longer
        mended = Correction(self._right)
        if differ(self._called(1, mended), self.expected):
            return ""
        for key, since in mended.origins.items():
            wrong = Correction(functools.partial(self._put_at, key, mended.results[key]))
            right = self.noted.results.get(since or key)
            between = list(mended.results) if since else []
            between = between[between.index(since) : between.index(key)] if since else []
            for one in between:
                one_number = _REDUCES.match(one.line) or mended.results[one].numel() == 1
                if one_number and not differ(self._mended_at(one), self.expected):
                    return f"in {one.line}"  # all that reaches them does so by its result
            counts = right is None or differ(self._mended_at(since or key), self.got)
            if counts and differ(self._called(0, wrong), self.expected):
                return mended.place(key)
        return ""

    def _mended_at(self, place: Key) -> Tensor:
        """The outputs that are kept, where one result is what it should be for these."""
        right = self.noted.results.get(place)
        return self._called(1, Correction(functools.partial(self._put_at, place, right)))

    def _called(self, number: int, mode: Correction) -> Tensor:
        """The outputs that are kept, in one of the two calls."""
        with torch.random.fork_rng(devices=[]), mode:
            output = self.calls[number]()
        return self.part(output)

    def _right(self, key: Key, result: Tensor) -> Tensor | None:
        """A result with what it was for what is kept; ``None`` if it has no axis of that."""
        before = self.noted.results.get(key)
        return None if before is None else self._put(before, result)

    def _put_at(self, place: Key, value: Tensor | None, key: Key, result: Tensor) -> Tensor:
        """A result, or at one place another for what is kept, for all without an axis of that."""
        if key != place or value is None:
            return result
        put = self._put(value, result)
        if put is not None:
            return put
        return value if value.shape == result.shape else result

    def _put(self, source: Tensor, target: Tensor) -> Tensor | None:
        """A tensor with what another holds for what is kept."""
        axes = tuple(n for n, count in enumerate(target.shape) if self.is_of_tokens(count))
        axes += tuple(n for n, count in enumerate(source.shape) if self.is_of_tokens(count))
        is_folded = self.axis == 0 and target.dim() > 0 and len(target) % self.size == 0
        if is_folded and not axes and target.shape[:1] == source.shape[:1]:
            sizes = (self.size, len(target) // self.size)
            read = [
                self._put(source.reshape(*order, -1), target.reshape(*order, -1))
                for order in (sizes, sizes[::-1])
            ]
            fits = [one.reshape(target.shape) for one in read if one is not None]
            return next((one for one in fits if not differ(target, one)), fits[0])
        if source.dim() != target.dim():
            return None
        value = target.clone()
        part, given = self.part(value, axes), self.part(source, axes)
        if part.shape != given.shape or (not axes and differ(source, target)):
            return None
        part.copy_(given)
        return value
