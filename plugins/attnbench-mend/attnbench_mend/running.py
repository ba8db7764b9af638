"""A file of the user's code that runs with changes: the code of its functions is exchanged."""

from __future__ import annotations

import contextlib
import gc
import linecache
import signal
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType

_Key = tuple[str, int]


class TooLong(BaseException):  # no Exception, which changed code may catch
    """Changed code takes too long: it may loop."""


class SourceFile:
    """A file that was imported, as text and as the functions that were made of it.

    Args:
        name: its path, as code objects have it.

    Raises:
        SyntaxError: it is no Python.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = "".join(linecache.getlines(name))
        read = _codes(compile(self.text, name, "exec", dont_inherit=True))
        self._functions: dict[_Key, list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename == name:
                key = _key(thing.__code__)
                if read.get(key) == thing.__code__:  # else the file was changed since
                    self._functions.setdefault(key, []).append(thing)

    @contextlib.contextmanager
    def running(self, text: str) -> Iterator[bool]:
        """Run the file as another text with as many lines says; whether any function differs."""
        before: list[tuple[FunctionType, CodeType]] = []
        try:
            for key, code in self._compiled(text).items():
                for function in self._functions.get(key, ()):
                    own = function.__code__
                    if own != code and own.co_freevars == code.co_freevars:
                        before.append((function, own))
                        function.__code__ = code
            yield bool(before)
        finally:
            for function, own in before:
                function.__code__ = own

    def _compiled(self, text: str) -> dict[_Key, CodeType]:
        try:
            return _codes(compile(text, self.name, "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return {}


def _codes(code: CodeType) -> dict[_Key, CodeType]:
    """The code of all functions, but for those that stand at one place with others."""
    found: dict[_Key, list[CodeType]] = {}
    left = [code]
    while left:
        for part in left.pop().co_consts:
            if isinstance(part, CodeType):
                found.setdefault(_key(part), []).append(part)
                left.append(part)
    return {key: parts[0] for key, parts in found.items() if len(parts) == 1}


def _key(code: CodeType) -> _Key:
    return code.co_qualname, code.co_firstlineno


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLong` after some seconds of computing, where there is such a timer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)  # again, if something catches it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
