"""The operation of a call behind another in which it parts from one call on all tokens."""

from __future__ import annotations

import itertools
from collections import Counter

import torch
from torch import Tensor

from attnbench.invariants.caches.given_calls import GivenCalls
from attnbench.invariants.toolkit.origins import Correction, Key, differ
from attnbench.invariants.toolkit.partings import agreed, parting


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
    wrong = []
    for given, start in ((tokens, past), (others, past + 1), (others, past)):
        one = GivenCalls(calls.stage, calls.module, given[:, : start + count + 1], calls.gap)
        has_room = start + count < min(most, given.shape[1])
        if has_room and not one.is_right(one.of_one(start), start, count):
            wrong.append((one, start))
        elif given is tokens:
            return ""
    if len(wrong) == 1:
        return ""
    found = [_LaterCall(one, start, count).first_wrong() for one, start in wrong[:2]]
    ends = {end for end, _ in found}
    texts = sorted(text for _, text in found)  # one that is between two places claims less
    if len(ends) == 1 and texts[0]:
        return f"\n  it goes wrong first {texts[0]}"
    return agreed([_parting(one, start, count) for one, start in wrong[:2]], "it", "one call")


def _parting(calls: GivenCalls, past: int, count: int) -> list[str]:
    """The lines in which a call behind one on other tokens parts from one call on both."""
    if calls.tokens.dtype != torch.float64:
        return []

    cache, before = calls.of_one(past), calls.tokens[:, :past]

    def behind(hidden: Tensor) -> Tensor:
        return calls.stage.subject.call(calls.module, hidden, None, cache)[0]

    def whole(hidden: Tensor) -> Tensor:
        return calls.stage.one_call(calls.module, torch.cat([before, hidden], 1))

    hidden = calls.tokens[:, past : past + count]
    return parting(behind, whole, hidden, last=(past + count, count)).lines()


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
        cache, noted = calls.of_one(start), Correction()
        with noted:
            calls.after(cache, start, count)
        return noted.results

    def first_wrong(self) -> tuple[str, str]:
        """Place and name of the first operation that makes the output right; empty if unknown.

        Behind one that makes it another wrong output nothing can be told of others.
        """
        (mended, is_right, _), (_, _, wrong) = self._repeated(None), self._repeated("")
        for key, since in mended.origins.items() if is_right else ():
            if since and self._repeated(_place(since.line))[1]:
                return _place(since.line), f"in {since.line}{self._without(since.line)}"
            _, makes_it_right, output = self._repeated(_place(key.line))
            if makes_it_right:
                return _place(key.line), f"{mended.place(key)}{self._without(key.line)}"
            if differ(output, wrong):
                return "", ""
        return "", ""

    def _repeated(self, place: str | None) -> tuple[Correction, bool, Tensor]:
        """The call with what is wrong put right, in one place or in all.

        Returns:
            What was put right, whether the output is right, and the output.
        """

        def right(key: Key, result: Tensor) -> Tensor | None:
            if place is None:
                return self._expected(key) if self._is_comparable(key) else None
            return self._expected(key) if _place(key.line) == place else result

        replay, cache = Correction(right), self.calls.of_one(self.past)
        with replay:
            output, _ = self.calls.after(cache, self.past, self.count)
        return replay, self.calls.fits(output, self.past, self.count), output

    def _expected(self, key: Key) -> Tensor | None:
        """The result of an operation for the same tokens in one call; ``None`` if it is unlike."""
        own = self.own.get(key)
        return None if own is None else self._last(self.whole.get(self._in_one(key)), own)

    def _is_comparable(self, key: Key) -> bool:
        """Whether a result depends on earlier tokens in both calls, or in none.

        What does so in one call alone may be a part that is added to another.
        """
        one, own = self._expected(key), self.own.get(key)
        if one is None or own is None or key not in self.own_moved:
            return False
        moved = self._last(self.whole_moved.get(self._in_one(key)), own)
        if moved is None:
            return False
        return differ(one, moved) == differ(own, self.own_moved[key])

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
        """The last operation on tokens before a line, at a place that only one call comes to."""
        before = itertools.takewhile(lambda item: item[0].line != line, self.whole.items())
        total, own = self.past + self.count, set(map(_place, self.lines))
        fed = [k.line for k, t in before if _place(k.line) not in own and total in t.shape]
        if not fed or line not in self.whole_lines:
            return ""
        return f"; a single call runs {fed[-1]} before it, and this call does not"


def _place(line: str) -> str:
    return line.partition(" at ")[2]
