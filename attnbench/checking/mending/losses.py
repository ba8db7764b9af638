"""What a change of the source loses by which what failed may hold: no remedy, but a way around."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from attnbench.checking.mending.approval import Judge, Place
from attnbench.checking.mending.edit_context import Kind
from attnbench.checking.mending.running_code import RunLines

_Ran = Mapping[int, Mapping[str, Kind]]


class Losses:
    """What changes lose of what ran in the calls that failed, and in ordinary ones.

    Args:
        judge: makes the calls.
        lines: what does not count.
    """

    def __init__(self, judge: Judge, lines: RunLines) -> None:
        self._judge, self._lines = judge, lines

    def _ran(self, file: str) -> tuple[set[int], _Ran]:
        """The lines that run in the calls that failed, and the names in these and ordinary ones."""
        lines = RunLines(self._lines.apart, self._lines.files_apart)
        with lines.watched():
            list(self._judge.tried_again())
        failing = {*lines.ran.get(file, {})}
        with lines.watched():
            self._judge.ordinary_again()
        return failing, lines.ran.get(file, {})

    def of(self, place: Place) -> str:
        """What a change loses: lines that ran, or a number that is no longer one of its own."""
        changed = place.edit.applied(place.source.lines)
        with place.source.running(place.definition, changed):
            now, own = self._ran(place.source.name)
        then, was = self._ran(place.source.name)  # behind it, as it may make the layer no more
        if then - now and len(then - now) >= len(now - then):
            return f"with it, line {min(then - now)} is not run, which may be all that it does"
        for name, part in _idle(changed, place, was, own):
            return f"with it, {name} is always {part}, which may be all that it does"
        return ""


def _idle(
    changed: list[str], place: Place, then: _Ran, now: _Ran
) -> Iterator[tuple[str, str | int]]:
    """Yield a name that is set to a sum of parts, and which of them it always is since then."""
    for node in ast.walk(ast.parse("\n".join(changed))):
        end = getattr(node, "end_lineno", None) or 0
        if not isinstance(node, ast.Assign) or not node.lineno <= place.edit.start[0] <= end:
            continue
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Name) or isinstance(value, ast.Name | ast.Constant):
            continue
        line = min((n for n in now.keys() & then.keys() if n > end), default=0)
        own, was = (one.get(line, {}).get(target.id, ()) for one in (now, then))
        if len(own) < 3 or len(was) < 3 or len({*was[2]}) < 2:
            continue
        if len({*own[2]}) == 1 < len(own[2]):
            yield target.id, own[1]
        for part in ast.walk(value):
            read = part.id if isinstance(part, ast.Name) else ""
            if own == now[line].get(read) and len({*own[2]}) > 1 and was != then[line].get(read):
                yield target.id, read
