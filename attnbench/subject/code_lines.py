"""The lines of a subject's own code, for what points a reader at them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from attnbench.processes.tracebacks import is_own_code
from attnbench.specs import KernelSpec
from attnbench.subject.subject import Subject


class CodeLines(NamedTuple):
    """Lines of a file: the one where the computation begins, and the span of its definition."""

    file: str
    line: int
    first: int
    last: int


def code_lines(subject: Subject) -> CodeLines | None:
    """Where the user's code that computes a subject's answer is defined.

    That is the kernel, the function or class that an adapter calls, the class of the module that
    ``make`` returns, or else ``make``; ``None`` if no source of any is at hand.
    """
    for part in _parts(subject):
        with contextlib.suppress(TypeError, OSError):
            found = _lines(part)
            if is_own_code(found.file):
                return found
    return None


def _parts(subject: Subject) -> Iterator[Any]:
    spec = subject.spec
    if isinstance(spec, KernelSpec):
        yield spec.attend
        return
    make = inspect.unwrap(subject.maker.make)
    for holder in (spec, make):
        yield getattr(holder, "callee", None)
    with contextlib.suppress(Exception):  # what is wrong with it, its check has told
        yield type(subject.make(4, 4, 4))
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
