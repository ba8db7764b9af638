"""Programs: sequences of operations on the caches of one layer, as plain data.

The schedule lists some programs; Hypothesis draws others, and shrinks failing ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MOST_TRACKS = 4
"""Most caches in a program."""

KINDS = ("append", "without", "crop", "select", "fork", "begin")
"""Kinds of step, the simplest first."""

MOST_ROWS = 6
"""Most rows of a cache after a selection with repeats."""


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Args:
        kind: ``begin`` a sequence with its own cache, ``append`` a chunk, ``select`` rows, ``crop``
            slots, ``fork`` by ``copy.deepcopy``, or a call ``without`` a cache.
        track: number of the sequence, in order of their beginnings.
        count: tokens of a chunk or call, slots to keep (below 0, to take back, until
            :func:`legalised` has counted them), or rows to begin with.
        rows: selected rows; for ``begin`` the padded slots at the left of each row, or nothing; for
            ``append`` the tokens of each row, whose other slots are padding at the right, or
            nothing.
    """

    kind: str
    track: int = 0
    count: int = 0
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f" of cache {self.track}" if self.track else ""
        match self.kind:
            case "begin":
                pads = f" with {list(self.rows)} padded slots at the left" if any(self.rows) else ""
                return f"begin {self.count} row{'s' * (self.count != 1)}{pads}"
            case "append":
                what = (
                    f"{list(self.rows)} tokens in {self.count} slots" if self.rows else self.count
                )
                return f"append {what}" + (f" to cache {self.track}" if self.track else "")
            case "select":
                return f"select rows {list(self.rows)}{where}"
            case "crop":
                return f"crop to {self.count}{where}"
            case "fork":
                return f"deepcopy cache {self.track}"
            case _:
                return f"call without a cache on {self.count}"


Program = tuple[Step, ...]


def steps(
    rows: int, *parts: int | str | tuple[int, ...] | Step, pads: Sequence[int] = ()
) -> Program:
    """Write a program of one sequence: a number appends, a tuple selects, ``-n`` crops to n.

    ``"0"`` crops to nothing, and a word is a step of that kind.
    """
    found = [Step("begin", count=rows, rows=tuple(pads))]
    for part in parts:
        if isinstance(part, Step):
            found.append(part)
        elif isinstance(part, tuple):
            found.append(Step("select", rows=part))
        elif isinstance(part, str):
            found.append(Step("crop") if part == "0" else Step(part, count=2))
        else:
            found.append(Step("append", count=part) if part > 0 else Step("crop", count=-part))
    return tuple(found)


def in_words(program: Program) -> str:
    """Describe a program in words."""
    return ", ".join(map(str, program))


def legalised(program: Iterable[Step], capacity: int) -> Program:
    """The same program with illegal steps made legal or left out."""
    found: list[Step] = []
    tracks: list[_Track] = []
    for step in program:
        if step.kind == "begin":
            legal = _begun(step, tracks)
        elif step.kind == "without":
            count = min(step.count, capacity) if tracks else 0
            legal = Step("without", count=count) if count else None
        else:
            known = step.track < len(tracks)
            legal = _continued(step, tracks, capacity) if known else None
        if legal is not None:
            found.append(legal)
    return tuple(found)


@dataclass
class _Track:
    """The rows and the length of a sequence."""

    rows: int
    length: int = 0


def _begun(step: Step, tracks: list[_Track]) -> Step | None:
    """A legal step that begins a sequence, or ``None``."""
    if len(tracks) >= MOST_TRACKS:
        return None
    count = min(max(1, step.count), MOST_ROWS)
    pads = (*step.rows[:count], *[0] * (count - len(step.rows)))
    tracks.append(_Track(count))
    return Step("begin", count=count, rows=pads if any(pads) else ())


def _continued(step: Step, tracks: list[_Track], capacity: int) -> Step | None:
    """A legal step that goes on with a sequence, or ``None``."""
    track = tracks[step.track]
    if step.kind == "append":
        step = _appended(step, track.rows, capacity - track.length)
        track.length += step.count
        return step if step.count else None
    if step.kind == "select":
        chosen = tuple(row for row in step.rows if row < track.rows)[:MOST_ROWS]
        track.rows = len(chosen) or track.rows
        return replace(step, rows=chosen) if chosen else None
    if step.kind == "crop":
        kept = step.count if step.count >= 0 else max(0, track.length + step.count)
        track.length = min(kept, track.length)
        return replace(step, count=track.length)
    if step.kind == "fork":
        if len(tracks) >= MOST_TRACKS:
            return None
        tracks.append(replace(track))
    return step


def _appended(step: Step, rows: int, left: int) -> Step:
    """The step with no more tokens than fit, and a number for each row if they differ."""
    count = max(0, min(step.count, left))
    if not step.rows or not count:
        return replace(step, count=count)
    own = (*step.rows, *[count] * rows)[:rows]
    own = tuple(min(tokens, count) for tokens in own)
    return replace(step, count=count, rows=own if set(own) != {count} else ())
