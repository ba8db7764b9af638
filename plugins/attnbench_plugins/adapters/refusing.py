"""What is said of code that cannot be made or called.

What was tried, what is missing, and what to add: ``...`` is where only a person can fill in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from attnbench.styles import (
    Argument,
    DownloadError,
    TooLargeError,
    TooLongError,
    in_one_line,
    source_line_of,
)

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (DownloadError, "it opens a connection, and nothing is downloaded here"),
    (TooLargeError, "give it a smaller size of its own"),
    (TooLongError, "give it less to do"),
    (RecursionError, "what it takes does not end"),
)
_EXAMPLE = (
    "attnbench.check(module, example=(args, kwargs)) in Python; FILE.py:MODULE --example "
    "FILE.py:NAME here, where MODULE is an instance."
)
_WORDS = "query, key, value, memory, hidden, mask or lengths"


class Raised(str):
    """What a call raised, or gave, in a line; the call that came furthest is the likeliest."""

    def __init__(self, _: str) -> None:
        self.reached: float = math.inf  # the callee's own line in which it raised

    def of(self, layout: str) -> Raised:
        """The same line, begun by the layout of the call."""
        made = Raised(f"{layout}: {self}")
        made.reached = self.reached
        return made


def not_made(
    target: Any, error: BaseException, tried: Sequence[str] = (), guessed: Sequence[str] = ()
) -> str:
    """Why no module can be made of a class, in two lines.

    Args:
        target: the class.
        error: what its constructor raised at last.
        tried: the calls of it that were tried, as Python for a ``size``.
        guessed: arguments whose names say nothing.
    """
    name = getattr(target, "__name__", str(target))
    place = source_line_of(error) or ""
    lines = [f"{name} cannot be made: {in_one_line(error)}{place and f' at {place}'}"]
    if tried:
        lines[0] += f" ({len(tried)} calls tried, the first {tried[0].replace('=size', '=E')})"
    reason = next((text for kind, text in _REASONS if isinstance(error, kind)), "")
    names = [*dict.fromkeys(guess.rpartition(".")[2] for guess in guessed)]
    missing = f"what {' and '.join(names)} should be" if names else "how it is made"
    start = f"{reason[0].upper()}{reason[1:]}, or say" if reason else "Say"
    call = tried[-1].replace("=size", "=E") if tried else f"{name}(...)"
    for each in names:
        call = re.sub(rf"\b{each}=(?:[^,()]+|[\w.]*\([^()]*\))(?=[,)])", f"{each}=...", call)
    if not names:  # what is no number of features is a guess, too
        call = re.sub(r"=(?!E\b)[^,()]+(?=[,)])", "=...", call)
    call = call if "..." in call else f"{name}(...)"
    advice = f'{start} {missing}, for E features: --make "{call}".'
    lacks = isinstance(error, ModuleNotFoundError)  # and no argument makes up for it
    lines.append("Install what is missing." if lacks else advice)
    return "\n".join(lines)


MIXES = "an item changes with the others"
_NUMBER = re.compile(r"'(int|float|str)' object is not callable")


def not_called(
    target: Any, arguments: Sequence[Argument], raised: Sequence[Raised], *, said: bool = False
) -> str:
    """Why no call of a callee fits: two lines, and the call that a person can complete.

    Args:
        target: a class, module or function.
        arguments: those of its forward.
        raised: a line for each call that was tried.
        said: whether somebody said what they are.
    """
    name = getattr(target, "__name__", type(target).__name__)
    required = [a for a in arguments if a.required]
    unknown = [a.name for a in required if a.role is None and not a.given]
    tried = "no call of it is known"
    if raised:
        chosen: str = max(raised, key=lambda each: each.reached)
        layout, _, error = chosen.partition(": ")
        if layout.isupper():
            shapes = " and ".join(f"({', '.join(each)})" for each in layout.split(", "))
            chosen = f"{error}, given {shapes}"
        verb = "shows that" if error == MIXES else "raises"
        tried = f"of {len(raised)} calls that were tried the likeliest {verb} {chosen}"
    lines = [f"{name} cannot be called: {tried}"]
    if said:
        return "\n".join([*lines, f"That is as --call says. Show one call of it: {_EXAMPLE}"])
    if _NUMBER.search(tried):  # given to its constructor where a function or module should be
        return "\n".join([*lines, f"Show one call of one that is made: {_EXAMPLE}"])
    read = ", ".join(f"{a.name} as {a.role}" for a in required if a.role) or "none says what it is"
    missing = f"what {' and '.join(unknown)} should be" if unknown else "which tensors it takes"
    lines.append(f"Its arguments were read by their names ({read}); say {missing}.")
    # what the names say was tried: where they say it of all, all may be something else
    known = {a.name: a.role if unknown and a.role else "..." for a in required}
    known |= {a.name: repr(a.given[0]) for a in required if a.given}
    call = ", ".join(f"{each}={role}" for each, role in known.items())
    if known:
        lines.append(f'Or say which is {_WORDS}, or its value: --call "f({call})".')
    lines.append(f"Or show one call, which a tensor of another shape needs: {_EXAMPLE}")
    return "\n".join(lines)
