"""Programs: sequences of operations on the caches of one layer, as plain data.

The schedule lists some programs, and Hypothesis draws others. A step that is not legal where it
stands is made legal, or left out, when it is played.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis import strategies as st

MOST_TRACKS = 4
"""Most caches in a program."""

KINDS = ("append", "without", "crop", "select", "fork", "begin")
"""Kinds of step, the simplest first."""

MOST_ROWS = 6
"""Most rows of a cache after a selection with repeats."""

_PLAYS = 300
"""Most programs that are played to find a shorter one that fails."""


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Args:
        kind: ``begin`` a sequence with its own cache, ``append`` a chunk, ``select`` rows, ``crop``
            slots, ``fork`` by ``copy.deepcopy``, or a call ``without`` a cache.
        track: number of the sequence, in order of their beginnings.
        count: tokens of a chunk or call, slots to keep (below 0, to take back, until they are
            counted when it is played), or rows to begin with.
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


def programs(has: Collection[str], window: int | None, length: int) -> st.SearchStrategy[Program]:
    """Programs of some steps after the first.

    Args:
        has: operations besides ``append``.
        window: a number of tokens around which chunks are drawn.
        length: number of steps after the first.
    """
    from hypothesis import strategies as st  # takes a quarter of a second, for drawing alone

    near = window or 4
    chunks = {1, 2, 3, 5, 7, near - 1, near, near + 1, 2 * near, 2 * near + 1}
    counts = st.sampled_from(sorted(n for n in chunks if 1 <= n <= 17))
    tracks = st.integers(0, MOST_TRACKS - 1 if "fork" in has else 0)
    pads = st.tuples(*[st.integers(0, 6)] * 3) if "pads" in has else st.just(())

    def chosen(least: int, most: int, largest: int) -> st.SearchStrategy[tuple[int, ...]]:
        numbers = st.lists(st.integers(0, largest), min_size=least, max_size=most)
        return numbers.map(lambda drawn: tuple(drawn))

    begin = st.builds(Step, st.just("begin"), count=st.integers(1, 3), rows=pads)
    drawn = {
        "append": [st.builds(Step, st.just("append"), tracks, counts)],
        "ragged": [
            st.builds(
                lambda track, rows: Step("append", track, max(rows), rows), tracks, chosen(1, 3, 5)
            )
        ],
        "select": [st.builds(Step, st.just("select"), tracks, rows=chosen(1, 4, 3))],
        "crop": [
            st.builds(Step, st.just("crop"), tracks, st.integers(*bounds))
            for bounds in ((0, 24), (-3, -1))
        ],
        "fork": [st.builds(Step, st.just("fork"), tracks), begin],
        "without": [st.builds(Step, st.just("without"), count=counts)],
    }
    some = [step for name, steps in drawn.items() if name in ("append", *has) for step in steps]

    def numbered(first: Step, rest: list[Step]) -> Program:
        """The steps, each of a sequence that has begun."""
        found = [first]
        for step in rest:
            begun = sum(earlier.kind in ("begin", "fork") for earlier in found)
            found.append(replace(step, track=step.track % begun))
        return tuple(found)

    rest = st.lists(st.one_of(some), min_size=length, max_size=length)
    return st.builds(numbered, begin, rest)


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The shortest program found that fails like this one."""
    known = {program}
    simpler = _simpler(program)
    while len(known) < _PLAYS and (candidate := next(simpler, None)) is not None:
        if candidate not in known:
            known.add(candidate)
            if fails(candidate):
                program, simpler = candidate, _simpler(candidate)
    return program


def _simpler(program: Program) -> Iterator[Program]:
    """Yield the program without runs of steps, long ones first, and then with smaller steps."""
    size = len(program) // 2
    while size:
        for start in range(1, len(program) - size + 1):
            yield program[:start] + program[start + size :]
        size //= 2
    for place, step in enumerate(program):
        least = 0 if step.kind == "crop" else 1
        counts = {least, step.count // 2, step.count - 1}
        smaller = [replace(step, count=n) for n in sorted(counts) if least <= n < step.count]
        if step.rows and step.kind != "select":
            smaller.append(replace(step, rows=()))
        rows = [step.rows[:n] + step.rows[n + 1 :] for n in range(len(step.rows))]
        smaller += [replace(step, rows=left) for left in rows if left and step.kind == "select"]
        for other in smaller:
            yield (*program[:place], other, *program[place + 1 :])
