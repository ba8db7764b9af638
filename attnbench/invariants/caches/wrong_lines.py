"""The first operation in the calls of a program that has to be put right, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from attnbench.invariants.caches.attribution import played
from attnbench.invariants.caches.one_calls import OneCalls, UnlikeError, Values
from attnbench.invariants.caches.program import Program, Step
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.invariants.toolkit.origins import Given, Maker, differ
from attnbench.invariants.toolkit.repairs import in_words

_TRIED = 2
"""Most other programs that may show the same."""

TIMES = " times that of one call"
"""What is told behind a factor by which a whole result is wrong."""


def wrong_line(judged: str, stage: Stage, found: FoundError) -> str:
    """A line that names the first operation that has to be put right for a program to be right.

    Returns:
        Empty unless a program on other numbers of tokens shows the same.
    """
    wrong = played(stage, judged, found.steps)
    if wrong is None or wrong.steps[-1].kind != "append" or not wrong.place:
        return ""
    failing = (played(stage, judged, other) for other in _others(wrong.steps))
    others = list(islice(filter(None, failing), _TRIED))
    for cached in (True, False) if others else ():
        with suppress(UnlikeError):
            place, told = _place_of(OneCalls(stage, judged, wrong, cached))
            for other in others if place else ():
                if _place_of(OneCalls(stage, judged, other, cached))[0] == place:
                    return f"\n  it goes wrong first {place}{told}"
    return ""


def _others(program: Program) -> Iterator[Program]:
    """Yield programs with more tokens, or more padding, in front."""
    begin, first, *rest = program
    for more in (1, 2, 3) if first.kind == "append" and not first.rows else ():
        longer = replace(first, count=first.count + more)
        yield (begin, longer, *rest)
        if begin.rows:
            yield (replace(begin, rows=tuple(pad + more for pad in begin.rows)), longer, *rest)
    if not begin.rows:
        yield (begin, Step("append", count=2), first, *rest)


class _Root(NamedTuple):
    """Where what an operation is wrongly given comes from.

    Args:
        kind: ``made`` of numbers, or ``between`` it and the operation nothing can be compared;
            ``other`` results than in one call, or the call's own ``input``; ``""`` if unknown.
        line: the line of the operation that it comes from, if there is one.
        instead: that of what one call gives.
    """

    kind: str
    line: str = ""
    instead: str = ""


def _place_of(calls: OneCalls) -> tuple[str, str]:
    """Where it goes wrong, in words, and what it has there; empty if that cannot be told."""
    first = calls.first(resized=False)
    if first and (told := _told(calls, first)):
        return told
    cut = calls.first(resized=True)
    for number, key in [*cut][:1]:
        if not calls.bad(number, key):
            own = tuple(calls.own[number].results[key].shape)
            right = tuple(cut[number, key].shape)
            return f"in {key.line}", f": of the size {own}, where one call has {right}"
    for number, key in [*first][:1]:
        makers = [mine[1] for mine, _ in calls.bad(number, key)]
        if (number, key) in calls.kept and all(m and m.call == number for m in makers):
            return f"in {key.line}", ", which the cache keeps"
    if not first:
        maker, theirs_of = calls.made_by[calls.last]
        roots = _roots(calls, maker, theirs_of)
        if maker and [root.kind for root in roots] == ["between"]:
            return _span(roots[0].line, maker.key.line), ""
    return "", ""


def _told(calls: OneCalls, values: Values) -> tuple[str, str] | None:
    """Where it goes wrong first, if all that leads there is right or cannot be compared."""
    (number, key), value = next(iter(values.items()))
    bad, own, one = calls.bad(number, key), calls.own[number], calls.ones[number]
    if not bad:
        more = one.made_of[calls.pair(number, key)][len(own.made_of[key]) :]
        line = _before(calls, number, more[0][1], key.line) if more else ""
        told = f"; one call gives it the result of {line} too" if line else ""
        return f"in {key.line}", told or _numbers(own.results[key], value)
    roots = [root for mine, theirs in bad for root in _roots(calls, mine[1], theirs)]
    (mine, theirs), first = bad[0], roots[0]
    told = "" if bad[1:] else _numbers(mine[0], calls.part(number, theirs[0], mine[0]))
    match sorted({root.kind for root in roots}):
        case ["input"]:
            return f"in {key.line}", f", to which one call gives the result of {first.instead}"
        case ["other"]:
            instead = _before(calls, number, theirs[1], key.line) or first.instead
            told = f"; one call gives it that of {instead}" if instead else ""
            told = f", which is given the result of {first.line}{told}"
            lines = {first.line, instead or key.line}
            return f"in {key.line}", told if lines != {key.line} else ""
        case ["made"] if len({root.line for root in roots}) == 1:
            return f"in {first.line}", told
        case ["between"] if mine[1]:
            return _span(first.line, mine[1].key.line), told
    return None


def _roots(calls: OneCalls, maker: Maker | None, theirs: Given | None = None) -> list[_Root]:
    """Where what an operation is wrongly given comes from.

    Args:
        calls, maker: the calls, and what made it in them.
        theirs: what one call gives instead, if that is known.
    """
    instead = theirs[1].key.line if theirs and theirs[1] else ""
    if maker is None or maker.call not in calls.ones:
        made = theirs and maker is None and theirs[1]
        return [_Root("input" if made and not calls.runs(made) else "", "", instead)]
    number, key = maker.call, maker.key
    own, made_of = calls.own[number].results[key], calls.own[number].made_of[key]
    one = calls.result(number, key)
    if one is not None:
        if calls.agree(number, own, one):
            return [_Root("other", key.line, instead)]
        bad = calls.bad(number, key)
        return _roots(calls, bad[0][0][1], bad[0][1]) if len(bad) == 1 else [_Root("")]
    if not made_of:
        return [_Root("made", key.line)]
    if key.line.startswith("cat ") and theirs and theirs[0].shape == own.shape:
        wrong = _wrong_parts(made_of, theirs)
        return [root for part, right in wrong for root in _roots(calls, part, right)]
    found = [root for _, each in made_of if each for root in _roots(calls, each)]
    return [root for root in found if root.kind != "other"] or [_Root("between", key.line)]


def _wrong_parts(joined: list[Given], theirs: Given) -> Iterator[tuple[Maker | None, Given]]:
    """Yield what made the parts of a joined tensor that are wrong, each with what is right."""
    (first, _), *_, start = *joined, 0
    right, maker = theirs
    axis = next((n for n, size in enumerate(first.shape) if size != right.shape[n]), 0)
    for part, made_by in joined:
        own = right.narrow(axis, start, part.shape[axis])
        start += part.shape[axis]
        if part.numel() and differ(part, own):
            yield made_by, (own, maker)


def _before(calls: OneCalls, number: int, maker: Maker | None, line: str) -> str:
    """The line of one call that made what another line is given; empty if unknown."""
    while maker and _place(maker.key.line) == _place(line):
        makers = [m for _, m in calls.ones[number].made_of[maker.key] if m]
        maker = makers[0] if makers else None
    return maker.key.line if maker else ""


def _numbers(own: Tensor, right: Tensor | None) -> str:
    """The first number of a result that is wrong, and what it should be; or their ratio."""
    if right is None or own.shape != right.shape:
        return ""
    if own.is_floating_point():
        factor = round(float((own * right).sum() / (right * right).sum()), 9)
        is_all = 1e-3 < abs(factor) < 1e3 and not differ(own, factor * right)
        return f": it is {in_words(factor)}{TIMES}" if is_all else ""
    at = (own != right).flatten().nonzero()[0]
    mine, theirs = (one.flatten()[at].item() for one in (own, right))
    return f": {mine} where one call has {theirs}"


def _span(start: str, end: str) -> str:
    """A place, or two between which it is, in words."""
    one, two = _place(start), _place(end)
    return f"at {one}" if one == two else f"between {one} and {two}"


def _place(line: str) -> str:
    return line.partition(" at ")[2]
