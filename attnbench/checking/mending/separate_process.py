"""A process of its own for code that may loop, crash or leave something behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable

_END = b"\0"


def first_answers(answers: Callable[[], Iterable[str]], seconds: float) -> tuple[str, ...]:
    """The texts that a function yields within some seconds in a fork of this process.

    What it prints is discarded; an exception ends the texts. Where processes cannot be forked,
    there are none.
    """
    if not hasattr(os, "fork"):
        return ()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _discard_output()
            for answer in answers():
                os.write(writing, answer.encode() + _END)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        data = _received(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return tuple(text.decode() for text in data.split(_END)[:-1])


def _received(reading: int, deadline: float) -> bytes:
    data = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, 2**16)
        if not part:
            break
        data += part
    return data


def _discard_output() -> None:
    nothing = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    os.dup2(nothing.fileno(), 1)
    os.dup2(nothing.fileno(), 2)
    sys.stdout = sys.stderr = nothing
