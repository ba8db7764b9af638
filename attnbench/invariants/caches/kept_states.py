"""What the cache of a failing program holds, beside what one call leaves in it.

Where the output is right with a tensor of one call in its place, that tensor is what is wrong.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.invariants.caches.cache_parts import tensors_of, wrong_number
from attnbench.invariants.caches.given_calls import (
    GivenCalls,
    kept_of_earlier,
    times_in_a_call,
    unwritten_axis,
)
from attnbench.invariants.caches.program import Step, in_words
from attnbench.invariants.caches.seen_tokens import Replay
from attnbench.invariants.caches.stage import FoundError, Stage

_SHORT = 8
"""Most tokens of a first call that is compared with shorter ones."""

NAMED = 3
"""Most tensors of a kind that are named."""

UNWRITTEN = "in which nothing was written"
"""How slots of a cache are called that hold what a new one holds."""

RIGHT_WITH_IT = ": with that in its place the next call is right"
"""What shows that a tensor is wrong."""

USED = "leaves in the cache what one call leaves, but computes otherwise"
"""What is told of a call that leaves what is right."""

_NEAR = 1e-2
"""Tensors that are off by less than this part of the one that is off most are right."""


def kept_states(judged: str, stage: Stage, found: FoundError) -> str:
    """A sentence on the tensors of the cache that are wrong before or after the last call.

    Args:
        judged, stage: what the program is played on.
        found: the error of a program whose last step appends.
    """
    player = Replay(stage, judged)
    *before, last = found.steps
    for step in before:
        player.play(step)
    track = player.tracks[last.track]
    if last.kind != "append" or track.mask is not None:
        return ""
    past, count = track.seen.shape[1], last.count
    tokens = torch.cat([track.seen, player.chunk(len(track.seen), count + 1)], 1)
    calls = _States(player.stage, player.module, tokens, found.gap)
    one = calls.of_one(past)
    if calls.is_right(track.cache, past, count):
        return ""
    if not calls.is_right(one, past, count):
        if not past or not calls.is_right(calls.of_one(0), 0, past + count):
            return calls.slots_of_a_token() + calls.behind_nothing(past + count)
        if found_there := calls.reads_unwritten(past, count) or calls.behind_short_calls(past):
            return found_there
        if several := calls.left_by_several(past, count):
            return several
        return calls.left_by_the_last(track.cache, past, count)
    return calls.left_before(track.cache, one, past, count, before)


class _States(GivenCalls):
    """What calls leave in a cache."""

    @functools.cached_property
    def least(self) -> float:
        """The relative difference of a tensor that may explain the error: not one far smaller."""
        output = self.stage.expected(self.tokens).abs().amax()
        return _NEAR * self.gap / max(float(output), 1e-30)

    def slots_of_a_token(self) -> str:
        """A sentence on tensors to which a call adds its tokens more than once, one behind another.

        Slots that a token has by design, as one for each head, lie alike however tokens are cut.
        """
        one, two = self.of_one(1), self.of_one(2)
        caches = (one, two, self.after(one, 1, 1)[1])
        single, whole, cut = (dict(tensors_of(cache)) for cache in caches)
        found: dict[int, list[str]] = {}
        for place in single.keys() & whole.keys() & cut.keys():
            count = times_in_a_call(single[place], whole[place], cut[place])
            if count > 1:
                found.setdefault(count, []).append(place)
        texts = [
            f"{count} slots to {' and '.join(sorted(names))}" for count, names in found.items()
        ]
        return f"\n  each token adds {' and '.join(texts)}" if texts else ""

    def behind_nothing(self, total: int) -> str:
        """A sentence on first calls with a cache that are wrong, by their numbers of tokens."""
        wrong = [n for n in range(1, total + 1) if not self.is_right(self.of_one(0), 0, n)]
        if not wrong:
            return ""
        call = f"a first call on {_tokens(wrong[0])}, with a new cache,"
        fewer = ", and none on fewer does" * (wrong[0] > 1)
        already = f"\n  already {call} gives other outputs than one without a cache{fewer}"
        return already + self.reads_unwritten(0, wrong[0])

    def reads_unwritten(self, past: int, count: int) -> str:
        """A sentence on slots that no call writes, and without which the next one is right."""
        new, held = dict(tensors_of(self.of_one(0))), self.of_one(past)
        filled, names = copy.deepcopy(held), []
        for place, tensor in tensors_of(self.after(held, past, count)[1]):
            axis = unwritten_axis(new.get(place), tensor, past + count)
            own = dict(tensors_of(held)).get(place)
            if axis is not None and own is not None and own.shape == tensor.shape:
                own.data = own.narrow(axis, 0, past + count).clone()
                rest = dict(tensors_of(filled))[place].movedim(axis, 0)[past + count :]
                rest.copy_(torch.linspace(0.5, 1.5, rest.numel()).reshape(rest.shape))
                names.append(f"{place} {tuple(tensor.shape)}")
        if not 0 < len(names) <= NAMED or not self.is_right(held, past, count):
            return ""
        got, as_held = (self.after(c, past, count)[0] for c in (filled, self.of_one(past)))
        if torch.equal(got, as_held):  # it may go by the number of slots
            return f"\n  it is right with just the written slots of {' and '.join(names)}"
        what = f"slots of {' and '.join(names)} {UNWRITTEN}"
        return f"\n  it reads {what}: without these its output is right"

    def behind_short_calls(self, past: int) -> str:
        """A sentence where the next call is wrong only behind a first call on few tokens."""
        tokens, most = self.stage.tokens[:1], self.stage.subject.capacity
        calls = GivenCalls(self.stage, self.module, tokens, self.gap)
        counts = range(1, min(_SHORT, tokens.shape[1] - 1, most - 1) + 1)
        wrong = [n for n in counts if not calls.is_right(calls.of_one(n), n, 1)]
        if (
            past not in wrong
            or wrong != [*range(1, len(wrong) + 1)]
            or len(wrong) > len(counts) / 2
        ):
            return ""
        right = " to ".join(map(str, sorted({len(wrong) + 1, counts[-1]})))
        return (
            f"\n  behind a first call on {_tokens(len(wrong))}{' or fewer' * (len(wrong) > 1)} the "
            f"next one is wrong, behind one on {right} it is right: what so short a call leaves in "
            "the cache is wrong, or how it is used"
        )

    def left_by_several(self, past: int, count: int) -> str:
        """The tensor that a first call on several tokens leaves otherwise than calls on one each.

        Behind these the next call is right.
        """
        one, each = self.of_one(past), self.of_one(0)
        for number in range(past):
            each = self.after(each, number, 1)[1]
        if past < 2 or not self.is_right(each, past, count):
            return ""
        right = "is wrong: with what calls on one token each leave there the next call is right"
        apart = self.wrong(one, each, past, count).items()
        shapes = [f"{place} {tuple(mine.shape)}" for place, (mine, _) in apart]
        told = f"\n  what a call on {past} tokens leaves in {' and '.join(shapes)} {right}"
        return told * (len(shapes) == 1)

    def wrong(self, held: Any, one: Any, past: int, count: int) -> dict[str, tuple[Tensor, Tensor]]:
        """The tensors that differ, or the one with which, as the other has it, all is right."""
        apart = _apart(held, one, self.least)
        for place, (mine, other) in apart.items():
            cache = copy.deepcopy(held)
            if mine.shape == other.shape:
                dict(tensors_of(cache))[place].copy_(other)
                if self.is_right(cache, past, count):
                    return {place: (mine, other)}
        return apart

    def left_before(self, held: Any, one: Any, past: int, count: int, before: list[Step]) -> str:
        """The tensor that makes the last call wrong, which is right with the cache of one call."""
        after = f"\n  after {in_words(tuple(before))}, "
        if number := wrong_number(held, one, lambda cache: self.is_right(cache, past, count)):
            return after + number
        told, apart = "", self.wrong(held, one, past, count)
        if len(apart) == 1 and [step.kind for step in before] == ["begin", "append", "append"]:
            (place, pair), last = next(iter(apart.items())), before[-1].count
            first = dict(tensors_of(self.after(self.of_one(0), past - last, last)[1]))
            told = kept_of_earlier(*pair, first[place])
        return f"{after}{_unlike(apart, past)}{RIGHT_WITH_IT}{told}" if apart else ""

    def left_by_the_last(self, held: Any, past: int, count: int) -> str:
        """What the last call leaves, which is wrong also behind the cache of one call."""
        left, whole = self.after(held, past, count)[1], self.of_one(past + count)
        # a ring may hold the same slots in another order
        apart = _apart(left, whole, self.least, in_order=not self.is_right(left, past + count, 1))
        call = f"the call on {_tokens(count)}"
        if not apart:
            is_kept = any(tensor.numel() for _, tensor in tensors_of(left))
            return f"\n  {call} {USED}" if is_kept else ""
        earlier = dict(tensors_of(held))
        kept = {place: _keeps(earlier.get(place), pair[0], past) for place, pair in apart.items()}
        changed = [place for place in kept if kept[place] is False]
        if changed:
            return f"\n  {call} changes what {' and '.join(changed)} holds of earlier tokens"
        is_added = all(kept.values()) and all(one.shape == two.shape for one, two in apart.values())
        what = f"in what {call} adds" if is_added else f"after {call}"
        return f"\n  {what}, {_unlike(apart, past + count)}"


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count > 1)}"


def _keeps(before: Tensor | None, after: Tensor, past: int) -> bool | None:
    """Whether a tensor that grows by slots holds the earlier ones as before; ``None`` if not."""
    if before is None or before.dim() != after.dim():
        return None
    grown = [a for a in range(after.dim()) if before.shape[a] == past < after.shape[a]]
    kept = after.narrow(grown[0], 0, past) if len(grown) == 1 else after[:0]
    return _gap(before, kept) <= _NEAR if kept.shape == before.shape else None


def _gap(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest value."""
    if one.shape != other.shape:
        return math.inf
    gap, size = ((t.double().abs().nan_to_num()) for t in (one.double() - other.double(), other))
    return float(gap.amax()) / max(float(size.amax()), 1e-30) if gap.numel() else 0.0


def _apart(
    held: Any, one: Any, least: float, *, in_order: bool = True
) -> dict[str, tuple[Tensor, Tensor]]:
    """The tensors of two caches that differ by more than rounding, and by that part, by place."""
    others = dict(tensors_of(one))
    pairs = {place: (t, others[place]) for place, t in tensors_of(held) if place in others}
    gaps = {place: _gap(*pair) for place, pair in pairs.items()}
    if not in_order:
        gaps = {p: min(gaps[p], _gap(*(_sorted(t) for t in pairs[p]))) for p in pairs}
    largest = max((gap for gap in gaps.values() if gap < math.inf), default=0.0)
    kinds = {t.dtype for t, _ in pairs.values() if t.is_floating_point()}
    least = max([64 * torch.finfo(dtype).eps for dtype in kinds] + [_NEAR * largest, least])
    return {place: pairs[place] for place, gap in gaps.items() if gap > least}


def _sorted(tensor: Tensor) -> Tensor:
    return tensor.flatten().sort().values


def _unlike(apart: Mapping[str, tuple[Tensor, Tensor]], count: int) -> str:
    """What is wrong with tensors, beside those that one call leaves."""
    call, pairs = f"one call on {_tokens(count)}", dict(list(apart.items())[:NAMED])
    sized = [p for p, (one, other) in pairs.items() if one.shape != other.shape]
    if sized:
        one, other = (tuple(t.shape) for t in pairs[sized[0]])
        return f"{' and '.join(sized)} {_is(sized)} of the shape {one}, after {call} {other}"
    names = " and ".join(f"{place} {tuple(one.shape)}" for place, (one, _) in pairs.items())
    return f"{names} {_is(pairs)} not what {call} leaves"


def _is(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def changes(before: Mapping[str, Tensor], after: Any, rows: int) -> tuple[list[str], list[str]]:
    """The tensors that an operation has changed, and those with all rows that it has not.

    Args:
        before: copies of the cache's tensors by place.
        after: the cache afterwards.
        rows: number of rows before.

    Returns:
        Their places and shapes in words.
    """
    changed, left = [], []
    for place, tensor in tensors_of(after):
        old = before.get(place)
        description = f"{place} {tuple(tensor.shape)}"
        if old is None or old.shape != tensor.shape or not torch.equal(old, tensor):
            changed.append(description)
        elif rows in tensor.shape:
            left.append(description)
    return changed[:NAMED], left[:NAMED]
