"""Running a command in the process that imports torch for candidates, so that it is imported once.

That process has learnt nothing when it is forked: one fork starts candidates, the other becomes the
judge, and is told arguments and environment then.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from attnbench.cli.exit_codes import INTERRUPTED
from attnbench.errors import AttnbenchError

if TYPE_CHECKING:
    import socket
    from multiprocessing.connection import Connection

_STREAMS = ("stdin", "stdout", "stderr")


def run_beside_torch(module: str, told: tuple[Any, ...]) -> int:
    """The exit code of ``judge`` of a module, run there.

    Args:
        module: whose function gets a nursery of candidates and what is told.
        told: what can be pickled.

    Raises:
        AttnbenchError: the function raised it.
    """
    from attnbench.judging.entry import Nursery

    with contextlib.closing(Nursery()) as nursery:
        channel = nursery.fork(__name__, (0, 1, 2))
        streams = [getattr(sys, name) for name in _STREAMS]
        known = [(stream.encoding, stream.errors) for stream in streams]
        channel.send((module, told, dict(os.environ), known))
        try:
            pid = channel.recv()
        except EOFError:  # torch cannot be imported there, nor here
            return int(importlib.import_module(module).judge(nursery, *told))
        try:
            found = channel.recv()
        except (EOFError, KeyboardInterrupt) as error:  # it has told why, or ends as well
            found = 1 if isinstance(error, EOFError) else INTERRUPTED
        os.waitpid(pid, 0)
    if isinstance(found, AttnbenchError):
        raise found
    return int(found)


def main(channel: Connection, requests: socket.socket) -> None:
    """What is run there."""
    from attnbench.judging.entry import Nursery

    channel.send(os.getpid())
    module, told, environment, streams = channel.recv()
    os.environ.clear()
    os.environ.update(environment)
    for place, (name, (encoding, errors)) in enumerate(zip(_STREAMS, streams, strict=True)):
        mode = "w" if place else "r"
        opened = open(place, mode, 1, encoding, errors)  # noqa: SIM115
        setattr(sys, name, opened)
    try:
        found = importlib.import_module(module).judge(Nursery(requests), *told)
    except AttnbenchError as error:
        found = error
    channel.send(found)
