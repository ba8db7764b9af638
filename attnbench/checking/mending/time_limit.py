"""A limit of the seconds that changed code may take, as it may loop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class TooLong(BaseException):
    """A trial takes too long. No ``Exception``, since changed code may catch these."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLong` after some seconds of computing, where there is such a timer."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)  # again, if a callback lets it go by
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
