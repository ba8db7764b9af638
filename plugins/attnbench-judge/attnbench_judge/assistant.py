"""An assistant of the judge: a process that has the invariants checked beside the first calls.

It is forked from a process that has imported torch, and nobody's code runs in it but the judge's.
It calls another process of the candidate, on another core if there is one. So the judge's own calls
and the invariants, which take about as long, wait for each other only where times are measured.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from attnbench import AttnbenchError, Outcome
from attnbench_judge.decision import RefusedError
from attnbench_judge.entry import SETTLED_BYTES, Nursery
from attnbench_judge.fresh_calls import Tally
from attnbench_judge.trial import Task, Trial

_LEAVE_S, _POLL_S = 10.0, 0.005
"""How long it may take to end what it started, and how often that is looked at."""


@dataclass(frozen=True)
class Found:
    """Outcomes of the invariants, why the candidate was refused, and the calls that were made."""

    outcomes: tuple[Outcome, ...]
    refused: RefusedError | None
    tally: Tally


class Assistant:
    """The process, as the judge sees it; it begins with its first task, unless it has begun.

    Args:
        nursery: starts it.
    """

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._tasks: Connection | None = None
        self._pid = 0
        self._asked = False

    @property
    def ended(self) -> bool:
        """Whether there is none at present."""
        return self._pid == 0

    def ask(self, task: Task) -> None:
        """Give it a task; where it has ended, another one gets it."""
        try:
            self._send(task)
        except (EOFError, OSError):
            self.close()
            with _told_if_ended():
                self._send(task)

    def _send(self, task: Task) -> None:
        self._asked = True
        self._tasks = self._tasks or self._nursery.assistant()
        self._pid = self._pid or self._tasks.recv()
        self._tasks.send((task, os.getcwd(), dict(os.environ)))

    def answer(self) -> Found:
        """Wait for what it found.

        Raises:
            RefusedError: the process has ended.
            AttnbenchError, RuntimeError: the task has ended in an error.
        """
        assert self._tasks is not None
        with _told_if_ended():
            found = self._tasks.recv()
        self._asked = False
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Found)
        return found

    def give_up(self) -> None:
        """End it if it is at work, with all that it started."""
        if self._asked:
            self.close()

    def close(self) -> None:
        """End it."""
        if self._tasks is not None:
            self._tasks.close()
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
            deadline = time.monotonic() + _LEAVE_S
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(self._pid, signal.SIGKILL)
                time.sleep(_POLL_S)
        self._tasks, self._pid, self._asked = None, 0, False


@contextlib.contextmanager
def _told_if_ended() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise RefusedError("not_judged", "the assistant of the judge has ended") from error


def main(tasks: Connection, requests: socket.socket) -> None:
    """Do one task after another, until the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge ends it
    signal.signal(signal.SIGTERM, _end)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)  # the last one is the other process's
    torch.empty(SETTLED_BYTES, dtype=torch.uint8)  # or each large temporary is mapped anew
    gc.freeze()
    nursery = Nursery(requests)
    with contextlib.suppress(EOFError, OSError, _EndedError):  # the judge has ended, or ends it
        tasks.send(os.getpid())
        while True:
            task, folder, environment = tasks.recv()
            os.environ.update(environment)
            os.chdir(folder)
            tasks.send(_done(task, nursery))


class _EndedError(BaseException):
    """The judge does not wait for an answer."""


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _EndedError


def _done(task: Task, nursery: Nursery) -> Found | Exception:
    trial = Trial(nursery, task)
    refused = None
    try:
        trial.check()
    except RefusedError as error:
        refused = error
    except AttnbenchError as error:
        return error
    except Exception:  # a mistake of the judge's own
        return RuntimeError(traceback.format_exc())
    finally:
        trial.close()
    return Found(tuple(trial.outcomes), refused, trial.tally)
