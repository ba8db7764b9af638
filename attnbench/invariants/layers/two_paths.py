"""Two methods of a layer that should compute the same, and where they part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.invariants.toolkit.layer_faults import told_once
from attnbench.invariants.toolkit.origins import differ
from attnbench.invariants.toolkit.partings import agreed, parting
from attnbench.invariants.toolkit.repairs import repair
from attnbench.subject.layer import LayerSubject


class PathCalls:
    """Calls of a layer's two methods.

    Args:
        layer: the layer and its tokens.
        law: the law that names the two.
    """

    def __init__(self, layer: LayerCase, law: str) -> None:
        self.layer, module = layer, layer.module
        self.names = layer.subject.spec.paths[law]
        self.paths = {n: module if n == "forward" else getattr(module, n) for n in self.names}

    def cache(self, path: str, cut: int) -> Any:
        """The cache that a method leaves after the first tokens."""
        cache = self.layer.subject.new_cache(self.layer.module, len(self.layer.hidden))
        hidden = self.layer.hidden[:, :cut]
        return self.layer.subject.call(self.paths[path], hidden, None, cache)[1] if cut else cache

    def behind(self, first: str, last: str, cut: int) -> Tensor:
        """The outputs that one method gives the other tokens where the other one gave the first."""
        cache, hidden = self.cache(first, cut), self.layer.hidden[:, cut:]
        return self.layer.subject.call(self.paths[last], hidden, None, cache)[0]

    def lines(self, path: str, other: str, cut: int | None) -> tuple[list[str], list[str]]:
        """The lines in which two methods part: in one call, or behind the cache of the first."""

        def call(name: str, start: int | None, hidden: Tensor) -> Tensor:
            cache = None if start is None else self.cache(path, start)
            return self.layer.subject.call(self.paths[name], hidden, None, cache)[0]

        hidden, excused = self.layer.hidden, frozenset[str]()
        ways = [functools.partial(call, name, cut) for name in (path, other)]
        found = []
        for one, two in (ways, ways[::-1]):
            if cut:  # what is right behind a new cache is no mistake
                new = [functools.partial(call, each.args[0], 0) for each in (one, two)]
                excused = parting(new[0], new[1], hidden).apart
            found.append(parting(one, two, hidden[:, cut or 0 :], excused))
        return found[0].lines(found[1]), found[1].lines(found[0])


@told_once
def partings_of_paths(subject: LayerSubject, law: str) -> str:
    """Sentences on where two methods part; empty if it is not clear."""
    calls = []
    for length in (7, 10):
        case = Case((2,), length, length, 8, 8, 8, dtype="float64", seed=length)
        calls.append(PathCalls(LayerCase(subject, subject.legal(case)), law))
    one, two = calls[0].names
    cut, text = None, ""
    with torch.no_grad():
        layer = calls[0].layer
        expected, got = (layer.subject.call(calls[0].paths[n], layer.hidden)[0] for n in (one, two))
        if not differ(got, expected):
            cut = 3
            ways = [(first, last) for first in (one, two) for last in (one, two)]
            wrong = [way for way in ways if differ(calls[0].behind(*way, cut), expected[:, cut:])]
            text = _wrong_ways(wrong, ways)
    if cut is None and (changes := _changes(subject, law, one, two)):
        return changes
    found = [each.lines(two, one, cut) for each in calls]
    mine, theirs = ([lines[n] for lines in found] for n in (0, 1))
    return text + agreed(mine, two, one) + agreed(theirs, one, two)


def _changes(subject: LayerSubject, law: str, one: str, two: str) -> str:
    """The small changes with which one method gives what the other one gives."""

    def of(name: str) -> Callable[[LayerCase], Tensor]:
        return lambda layer: layer.subject.call(PathCalls(layer, law).paths[name], layer.hidden)[0]

    ways = ((two, one), (one, two))
    return "".join(repair(subject, of(b), of(a), f"{a} gives what {b} gives")[1] for a, b in ways)


def _wrong_ways(wrong: list[tuple[str, str]], ways: list[tuple[str, str]]) -> str:
    """Which of the two methods is wrong behind a cache, or leaves a wrong one."""
    for place, what in (
        (1, "behind a cache {} is wrong, whichever left it"),
        (0, "what {} leaves in a cache is wrong for either"),
    ):
        for name in {way[place] for way in ways}:
            if wrong == [way for way in ways if way[place] == name]:
                return f"\n  {what.format(name)}"
    return ""
