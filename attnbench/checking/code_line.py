"""The line of a subject's own code where its computation begins."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from attnbench.processes.tracebacks import is_own_code
from attnbench.specs import KernelSpec
from attnbench.subject.subject import Subject


def code_line(subject: Subject) -> tuple[str, int] | None:
    """File and line where the user's code that computes a subject's answer is defined.

    That is the kernel, the function or class that an adapter calls, the class of the module that
    ``make`` returns or of one within it, or else ``make``; ``None`` if no source of any is at hand.
    """
    for part in _parts(subject):
        with contextlib.suppress(TypeError, OSError):
            file, line = _line(part)
            if is_own_code(file):
                return file, line
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
        yield from dict.fromkeys(type(part) for part in subject.make(4, 4, 4).modules())
    yield make


def _line(part: Any) -> tuple[str, int]:
    """File and line of a function or class; of a module, the line of its ``forward``.

    Raises:
        OSError, TypeError: there is no source.
    """
    part = inspect.unwrap(getattr(part, "func", part))  # of a partial
    if not (inspect.isroutine(part) or inspect.isclass(part)):
        part = type(part)
    file, holder = str(inspect.getsourcefile(part)), part
    if inspect.isclass(part) and issubclass(part, nn.Module) and "forward" in vars(part):
        holder = inspect.unwrap(part.forward)
    return file, inspect.getsourcelines(holder)[1]
