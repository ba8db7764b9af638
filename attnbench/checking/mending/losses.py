"""What a change of the source loses by which what failed may hold: no remedy, but a way around."""

from __future__ import annotations

import ast
import functools
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

    @functools.cached_property
    def _then(self) -> tuple[RunLines, RunLines]:
        """What runs without any change."""
        return self._ran()

    def _ran(self) -> tuple[RunLines, RunLines]:
        """What runs in the calls that failed, and in ordinary ones and these."""
        failing, every = (RunLines(self._lines.apart, self._lines.files_apart) for _ in range(2))
        with failing.watched():
            list(self._judge.tried_again())
        with every.watched():
            self._judge.ordinary_again()
            list(self._judge.tried_again())
        return failing, every

    def of(self, place: Place) -> str:
        """What a change loses: lines that ran, or a number that is no longer one of its own."""
        changed, file = place.edit.applied(place.source.lines), place.source.name
        before = self._then
        with place.source.running(place.definition, changed):
            ran = self._ran()
        then, was, now, own = (one.ran.get(file, {}) for one in (*before, *ran))
        gone, new = then.keys() - now.keys(), now.keys() - then.keys()
        if gone and len(gone) >= len(new):
            return f"with it, line {min(gone)} is not run, which may be all that it does"
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
        if {own[:1], was[:1]} != {("number",)} or min(len(own), len(was)) < 3:
            continue
        if len({*was[2]}) < 2:
            continue
        if len({*own[2]}) == 1 < len(own[2]):
            yield target.id, own[1]
        for part in ast.walk(value):
            read = part.id if isinstance(part, ast.Name) else ""
            if own == now[line].get(read) and len({*own[2]}) > 1 and was != then[line].get(read):
                yield target.id, read
