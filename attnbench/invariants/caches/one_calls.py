"""The calls of a program, each beside one call on its tokens and all before them.

What both compute at the same line is held against each other, for the same tokens. The calls can be
repeated with what one call computes in the place of some results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attnbench.invariants.caches.cache_parts import tensors_of
from attnbench.invariants.caches.program import Step
from attnbench.invariants.caches.seen_tokens import Replay
from attnbench.invariants.caches.stage import FoundError, Stage, Track
from attnbench.invariants.toolkit.layer_rounding import floor_of
from attnbench.invariants.toolkit.origins import Flow, Given, Key, Maker, differ
from attnbench.invariants.toolkit.other_operations import Replaced, given

_MOST = 80
"""Most groups of results that are put right."""

_NEAR = 1e-3
"""What is off by less than this part of the error is right."""

Values = dict[tuple[int, Key], Tensor]
"""What results of a line should be, by call and operation."""


class UnlikeError(Exception):
    """One call is wrong, too."""


class OneCalls:
    """The calls of a program, beside one call on all tokens so far for each.

    Args:
        stage, judged: what the program is played on.
        found: the error of a program whose last call is wrong; another call follows it.
        cached: whether the one calls are given a new cache.

    Attributes:
        own, ones: operations of the calls, and of one call beside each, by the step of the program.
        made_by: what made the output of a call, and that of one call.
        kept: results that the cache holds after a call.
    """

    def __init__(self, stage: Stage, judged: str, found: FoundError, cached: bool) -> None:
        self.stage, self.judged, self.gap, self.cached = stage, judged, found.gap, cached
        *before, last = found.steps
        self.last = len(before)
        self._program = (*found.steps, Step("append", last.track, max(1, last.count)))
        is_plain = all(s.kind in ("begin", "append") and not s.track for s in before[1:])
        self._first = 1 if is_plain else self.last  # after a crop, say, the others are not of it
        self._spans: dict[int, tuple[int, int]] = {}
        self._expected: dict[int, tuple[Tensor, Tensor]] = {}
        self._whole: Tensor | None = None
        self.ones: dict[int, Flow] = {}
        self.made_by: dict[int, tuple[Maker | None, Given]] = {}
        self.kept = set[tuple[int, Key]]()
        made: dict[Any, tuple[Maker, Tensor]] = {}
        self.own = {number: Flow(number, made) for number in range(len(self._program))}
        for number, track, output in self._played(self.own.__getitem__):
            self._compare(number, track, output)
            makers = (self.own[number].maker(tensor) for _, tensor in tensors_of(track.cache))
            self.kept |= {(maker.call, maker.key) for maker in makers if maker}
        self.own = {number: self.own[number] for number in self._spans}
        if self._is_right_with({}):
            raise UnlikeError

    def _played(
        self, modes: Callable[[int], AbstractContextManager[object]]
    ) -> Iterator[tuple[int, Track, Tensor]]:
        """Yield each compared call, played in a context, with its output."""
        replay = Replay(self.stage, self.judged)
        for number, step in enumerate(self._program):
            with modes(number):
                replay.play(step)
            if number >= self._first and step.kind == "append":
                track, output = replay.tracks[step.track], replay.output
                assert output is not None
                yield number, track, track.outputs[-1] if track.outputs else output

    def _compare(self, number: int, track: Track, output: Tensor) -> None:
        """Note one call on all tokens so far, and what its output should be."""
        seen, count = track.seen, output.shape[1]
        expected = self.stage.expected(seen, track.mask).clone()
        if self.judged in ("alone", "ragged"):
            for row, real in enumerate(track.real):
                expected[row : row + 1, real] = self.stage.expected(seen[row : row + 1, real])
        self._spans[number] = seen.shape[1] - count, seen.shape[1]
        self._expected[number] = expected[:, -count:], track.real[:, -count:, None]
        module = self.stage.module()
        cache = self.stage.subject.new_cache(module, len(seen)) if self.cached else None
        with Flow(number, {}) as one:
            whole, _ = self.stage.subject.call(module, seen.clone(), track.mask, cache)
        before = whole[:, :0] if self._whole is None else self._whole
        expected[:, : before.shape[1]] = before  # where what follows does not change it
        if not self._fits(whole, expected, track.real[..., None]):
            raise UnlikeError
        self._whole = whole
        self.ones[number] = one
        self.made_by[number] = self.own[number].maker(output), (whole, one.maker(whole))

    def _fits(self, output: Tensor, expected: Tensor, real: Tensor) -> bool:
        gap = torch.where(real, (output - expected).double().abs().nan_to_num(torch.inf), 0.0)
        if not gap.numel():
            return True
        floor = 4 * floor_of(self.stage.subject, expected)
        return float(gap.amax()) <= max(floor, _NEAR * self.gap)

    def first(self, *, resized: bool) -> Values:
        """The first results with which, put right, all outputs from the wrong one on are right.

        Args:
            resized: whether they are results that have fewer keys than in one call.
        """
        return next(filter(self._is_right_with, self._groups(resized)), {})

    def _groups(self, resized: bool) -> list[Values]:
        """Results that are not as in one call: each by its number in a line, and all of a line."""
        found: dict[tuple[str, int], Values] = {}
        since: dict[tuple[str, int], tuple[int, int]] = {}
        for number, flow in self.own.items():
            for place, key in enumerate(flow.results):
                if (right := self._wrong(number, key, resized)) is None:
                    continue
                for which in (key.number, -1):
                    found.setdefault((key.line, which), {})[number, key] = right
                    since.setdefault((key.line, which), (number, place))
        for line, which in list(found):
            since[line, -1] = max(since[line, -1], since[line, which])
            if which >= 0 and len(found[line, which]) == len(found[line, -1]):
                del found[line, which]
        return [found[group] for group in sorted(found, key=since.__getitem__)[:_MOST]]

    def _is_right_with(self, values: Values) -> bool:
        """Whether the outputs are right, from the wrong call on, with other results."""

        def modes(number: int) -> Replaced:
            own = self.own.get(number)
            new = {own.numbers[k]: given(v) for (n, k), v in values.items() if own and n == number}
            return Replaced(new)

        try:
            outputs = list(self._played(modes))
        except Exception:  # what follows cannot take it
            return False
        return all(self._fits(o, *self._expected[n]) for n, _, o in outputs if n >= self.last)

    def _wrong(self, number: int, key: Key, resized: bool) -> Tensor | None:
        """What the result of an operation should be, where it is not that."""
        own, one = self.own[number].results[key], self.result(number, key)
        value = None if one is None else self.part(number, one, own, resized)
        if value is None or resized == (value.shape == own.shape):
            return None
        return value if resized or differ(own, value) else None

    def pair(self, number: int, key: Key) -> Key:
        """The same operation in one call; the last of them, where a loop comes to it more often."""
        own, one = (flows[number].counts[key.line] for flows in (self.own, self.ones))
        return Key(key.line, key.number + one - own) if one >= own else Key("", 0)

    def runs(self, maker: Maker) -> bool:
        """Whether the call beside one call comes to a line that made something in that."""
        return self.own[maker.call].counts[maker.key.line] > 0

    def result(self, number: int, key: Key) -> Tensor | None:
        """The result of the same operation in one call, if there is one."""
        return self.ones[number].results.get(self.pair(number, key))

    def part(self, number: int, one: Tensor, own: Tensor, resized: bool = False) -> Tensor | None:
        """What one call has for the tokens of a call; ``None`` where these are not told.

        Args:
            number: the call.
            one, own: what one call and the call have.
            resized: whether all keys are given where the call has only the last.
        """
        start, end = self._spans[number]
        if one.dim() != own.dim() or one.dtype != own.dtype:
            return None
        found = one
        for axis, (size, least) in enumerate(zip(one.shape, own.shape, strict=True)):
            if size != least and (size != end or least > size):
                return None
            if size != least and (least == end - start or not resized):
                found = found.narrow(axis, size - least, least)
        return found

    def agree(self, number: int, own: Tensor, one: Tensor) -> bool:
        """Whether a call and one call have the same."""
        part = self.part(number, one, own)
        return part is not None and not (own.numel() and differ(own, part))

    def bad(self, number: int, key: Key) -> list[tuple[Given, Given]]:
        """What an operation is given that it is not given in one call, and what it is there."""
        mine = self.own[number].made_of[key]
        theirs = self.ones[number].made_of[self.pair(number, key)]
        pairs = zip(mine, theirs, strict=False)
        return [(a, b) for a, b in pairs if not self.agree(number, a[0], b[0])]
