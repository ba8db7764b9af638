"""The lines of a subject's own code, and those of them that a failing case ran."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from torch import nn

from attnbench.cases.case import Case
from attnbench.checking.plan import select_invariants
from attnbench.processes.tracebacks import is_own_code
from attnbench.specs import KernelSpec
from attnbench.subject.subject import Subject


class CodeLines(NamedTuple):
    """The line of a file where the computation begins, the span of its definition, what ran."""

    file: str
    line: int
    first: int
    last: int
    ran: tuple[tuple[str, int], ...] = ()


def code_lines(
    subject: Subject, invariant: str | None = None, case: str | None = None
) -> CodeLines | None:
    """Where the user's code that computes a subject's answer is defined, and which lines ran.

    That is the kernel, the function or class that an adapter calls, the class of the module that
    ``make`` returns or of one within it, or else ``make``; ``None`` if no source of any is at hand.
    With the name of an invariant and the id of a case, its check runs again, and shows the lines
    that it reaches.
    """
    ran = _lines_run(subject, invariant, case) if invariant and case else ()
    for part in _parts(subject):
        with contextlib.suppress(TypeError, OSError):
            found = _lines(part)
            if is_own_code(found.file):
                return found._replace(ran=ran)
    return None


def _lines_run(subject: Subject, invariant: str, case: str) -> tuple[tuple[str, int], ...]:
    """Files and lines of the user's code that a check runs at a case, in order."""
    lines: dict[tuple[str, int], None] = {}

    def at_line(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not is_own_code(file):
            return None
        if event == "line":
            lines[file, frame.f_lineno] = None
        return at_line

    (check,) = select_invariants([invariant])
    before = sys.gettrace()
    sys.settrace(at_line)
    try:
        check.check(subject, Case.from_id(case))
    except (Exception, SystemExit):  # noqa: S110 -- it failed before, too
        pass
    finally:
        sys.settrace(before)
    return tuple(lines)


def _parts(subject: Subject) -> Iterator[Any]:
    spec = subject.spec
    if isinstance(spec, KernelSpec):
        yield spec.attend
        return
    make = inspect.unwrap(subject.maker.make)
    for holder in (spec, make):
        yield getattr(holder, "callee", None)
    with contextlib.suppress(Exception):  # what is wrong with it, its check has told
        yield from dict.fromkeys(type(part) for part in subject.make(4, 4, 4).modules())
    yield make


def _lines(part: Any) -> CodeLines:
    """The lines of a function, class or module.

    Raises:
        OSError, TypeError: there is no source.
    """
    part = inspect.unwrap(getattr(part, "func", part))  # of a partial
    if not (inspect.isroutine(part) or inspect.isclass(part)):
        part = type(part)
    lines, first = inspect.getsourcelines(part)
    line = first
    if inspect.isclass(part) and issubclass(part, nn.Module) and "forward" in vars(part):
        line = inspect.getsourcelines(inspect.unwrap(part.forward))[1]
    return CodeLines(str(inspect.getsourcefile(part)), line, first, first + len(lines) - 1)
