"""The operation of a call behind another in which it parts from one call on all tokens."""

from __future__ import annotations

import itertools
from collections import Counter

from torch import Tensor

from attnbench.invariants.caches.given_calls import GivenCalls
from attnbench.invariants.toolkit.origins import Key, Replay, differ


def first_wrong(calls: GivenCalls, past: int, count: int) -> str:
    """A line that names the operation of a call that has to be put right.

    Args:
        calls: calls that are wrong.
        past, count: tokens of one call, which is right, and of the next, which is not.

    Returns:
        Empty unless calls on other tokens show the same.
    """
    tokens = calls.tokens[:1]  # flattened with the tokens, rows would be taken for these
    others, most = calls.stage.tokens[:1, 1:], calls.stage.subject.capacity
    found = []
    for given, start in ((tokens, past), (others, past + 1), (others, past)):
        one = GivenCalls(calls.stage, calls.module, given[:, : start + count + 1], calls.gap)
        has_room = start + count < min(most, given.shape[1])
        if has_room and not one.is_right(one.of_one(start), start, count):
            found.append(_LaterCall(one, start, count).first_wrong())
        elif given is tokens:
            return ""
    return f"\n  first {found[0]}" if found[0] and {*found[1:2]} == {found[0]} else ""


class _LaterCall:
    """A call behind one on other tokens, beside one call on both.

    Args:
        calls: what is called.
        past, count: the numbers of tokens.
    """

    def __init__(self, calls: GivenCalls, past: int, count: int) -> None:
        self.calls, self.past, self.count = calls, past, count
        moved = calls.tokens.clone()
        moved[:, :past] = -moved[:, :past].roll(1, -1)
        others = GivenCalls(calls.stage, calls.module, moved, calls.gap)
        self.own, self.own_moved = (self._results(of, past, count) for of in (calls, others))
        whole = past + count
        self.whole, self.whole_moved = (self._results(of, 0, whole) for of in (calls, others))
        self.lines, self.whole_lines = (
            Counter(key.line for key in results) for results in (self.own, self.whole)
        )

    @staticmethod
    def _results(calls: GivenCalls, start: int, count: int) -> dict[Key, Tensor]:
        cache, noted = calls.of_one(start), Replay()
        with noted:
            calls.after(cache, start, count)
        return noted.results

    def first_wrong(self) -> str:
        """The operation, or two that have to be put right together; empty if it is unknown."""
        together = self._repeated(None)
        if together is None:
            return ""
        places: dict[str, Key] = {}
        for key, since in together.origins.items():
            if since and self._repeated(_place(since)) is not None:
                return f"in {since}{self._without(since)}"
            if _place(key.line) not in places and self._repeated(_place(key.line)) is not None:
                return f"{together.place(key)}{self._without(key.line)}"
            places.setdefault(_place(key.line), key)
        return " and ".join(map(together.place, places.values())) if len(places) == 2 else ""

    def _repeated(self, place: str | None) -> Replay | None:
        """The call with what is wrong put right, in one place or in all; ``None`` if in vain."""

        def right(key: Key, result: Tensor) -> Tensor | None:
            if place is None:
                return self._expected(key) if self._is_comparable(key) else None
            return self._expected(key) if _place(key.line) == place else result

        replay, past, count = Replay(right), self.past, self.count
        cache = self.calls.of_one(past)
        with replay:
            got, _ = self.calls.after(cache, past, count)
        return replay if self.calls.fits(got, past, count) else None

    def _expected(self, key: Key) -> Tensor | None:
        """The result of an operation for the same tokens in one call; ``None`` if it is unlike."""
        own = self.own.get(key)
        return None if own is None else self._last(self.whole.get(self._in_one(key)), own)

    def _is_comparable(self, key: Key) -> bool:
        """Whether a result depends on earlier tokens in both calls, or in none.

        What does so in one call alone may be a part that is added to another.
        """
        one, moved = (
            self._expected(key),
            self._last(self.whole_moved.get(self._in_one(key)), self.own[key]),
        )
        if one is None or moved is None or key not in self.own_moved:
            return False
        return differ(one, moved) == differ(self.own[key], self.own_moved[key])

    def _in_one(self, key: Key) -> Key:
        """The same operation in one call, where a loop over tokens comes to it more often."""
        more = self.whole_lines[key.line] - self.lines[key.line]
        is_alike = not more or more * self.count == self.lines[key.line] * self.past
        return Key(key.line, key.number + more) if is_alike else Key("", 0)

    def _last(self, whole: Tensor | None, own: Tensor) -> Tensor | None:
        """The last tokens of a result; ``None`` if another axis has not the size of the own one."""
        sizes = (self.past + self.count, self.count)
        if whole is None or whole.dim() != own.dim() or whole.dtype != own.dtype:
            return None
        pairs = list(zip(whole.shape, own.shape, strict=True))
        if any(a != b and (a, b) != sizes for a, b in pairs):
            return None
        for axis, (size, least) in enumerate(pairs):
            whole = whole.narrow(axis, size - least, least)
        return whole

    def _without(self, line: str) -> str:
        """The last operation on tokens before a line, which only one call on all comes to."""
        before = itertools.takewhile(lambda item: item[0].line != line, self.whole.items())
        total = self.past + self.count
        fed = [k.line for k, result in before if k.line not in self.lines and total in result.shape]
        return f", without {fed[-1]}" if fed and line in self.whole_lines else ""


def _place(line: str) -> str:
    return line.partition(" at ")[2]
