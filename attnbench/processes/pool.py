"""Functions run in child processes, so that no subject can crash the run.

Children are forked from a server process that has imported torch (13 ms instead of 1.5 s each).
Work is given by name, as ``package.module:function`` with plain arguments, so that this process
imports neither torch nor plugins. If the function yields, each value is passed on as it comes::

    with Workers(jobs=2) as workers:
        workers.submit(Task("additive", "my_package.checks:check_all", {"target": "additive"}))
        for event in workers.events():
            ...

Leaving the ``with`` block, also by Ctrl-C, kills the children at once.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import IO, Any, Literal

import psutil

from attnbench import errors
from attnbench.processes import child
from attnbench.processes.child import MEMORY_GIB as MEMORY_GIB
from attnbench.processes.child import Task as Task
from attnbench.processes.tracebacks import last_words

GIB = 2**30
_POLL_S = 0.05
_LOG_BYTES, _MOST_LOG_BYTES = 2**20, 2**26
"""How much of the end of a child's output is read, and how much is kept on disk."""
_STACK_S = 1.0
"""Most seconds that a hanging process gets to write its stack."""


@dataclass(frozen=True)
class Event:
    """An event of a task; after any event but a ``value`` the task is over.

    Args:
        task: the task.
        kind: ``value``; ``done``; ``raised``, with the exception in ``error`` if it is one of
            attnbench's own; ``timeout``; or ``crashed``, also for a process over its memory limit.
        value: value that the function returned or yielded.
        reason: what happened, in a sentence, and the end of the process's standard error.
        raised: the last line of the traceback, if the function ``raised``.
        over_memory: whether a ``crashed`` process was killed because it used too much memory.
    """

    task: Task
    kind: Literal["value", "done", "raised", "timeout", "crashed"]
    value: Any = None
    reason: str = ""
    error: errors.AttnbenchError | None = None
    raised: str = ""
    over_memory: bool = False


class Workers:
    """Child processes that run submitted tasks.

    Args:
        jobs: number of processes at a time; 0 for one per core.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs or cores()
        self._queue: collections.deque[Task] = collections.deque()
        self._children: list[_Child] = []
        self.stopped: Callable[[], bool] = lambda: False
        """Whether to give up, which is asked while events are awaited."""

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Add a task to the queue, at its end or front; allowed while events are being read."""
        (self._queue.appendleft if first else self._queue.append)(task)

    def events(self) -> Iterator[Event]:
        """Yield events as they happen, until no task is left."""
        while (self._queue or self._children) and not self.stopped():
            while self._queue and len(self._children) < self._jobs:
                self._children.append(_Child(self._queue.popleft()))
            connection.wait([process.receiver for process in self._children], timeout=_POLL_S)
            for process in list(self._children):
                for event in process.poll():
                    if event.kind != "value":
                        self._children.remove(process)
                        process.end()
                    yield event

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        while self._children:
            self._children.pop().end()


def cores() -> int:
    """The number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def call(task: Task) -> Any:
    """Run one task and return its value.

    Raises:
        AttnbenchError: the function raised it, or (``PluginError``) the process ended.
    """
    value = None
    with Workers() as workers:
        workers.submit(task)
        for event in workers.events():
            if event.kind == "value":
                value = event.value
            elif event.kind != "done":
                text = f"{task.name}: {event.reason}"
                raise event.error or errors.PluginError(text, raised=event.raised)
    return value


def end_text(code: int | None, log: IO[bytes]) -> str:
    """How a process ended, by its exit code (``None`` while it runs), and its last words."""
    if code is None:
        cause = "its process closed its pipe"
    elif code < 0:
        cause = f"its process was ended by {signal.Signals(-code).name}"
    else:
        cause = f"its process ended itself with exit code {code}"
    return cause + log_tail(log)


def log_tail(log: IO[bytes]) -> str:
    """The last words in the file to which a process writes its output."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
    return last_words(log.read(_LOG_BYTES).decode(errors="replace"))


def kill_group(leader: int | None) -> None:
    """Kill a process that leads a group of its own, and what it has started."""
    if leader:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def warm_up(*modules: str) -> None:
    """Start the server process in the background; it takes as long as importing torch.

    Args:
        modules: further modules that it imports for its children; ignored if it already runs.
    """
    from multiprocessing import forkserver

    _context(modules)
    with _launch_environment():
        forkserver.ensure_running()


def _context(preload: Sequence[str] = ()) -> Any:
    """The multiprocessing context of children; a new server imports torch and ``preload``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *preload])
    return context


_VARIABLES = {"PYTHONUTF8": "1", "PYTHONWARNINGS": "ignore:resource_tracker"}


@contextlib.contextmanager
def _launch_environment() -> Iterator[None]:
    """Start processes without this one's main script, and with UTF-8 as default encoding.

    Otherwise torch fails to import in a locale without UTF-8, since its sources are UTF-8. Python's
    resource tracker must not warn of semaphores that a killed child leaves, since it frees them.
    Ctrl-C reaches all processes of a terminal and is blocked for the new ones, since a server that
    is interrupted while it imports would print a traceback.
    """
    from multiprocessing import resource_tracker

    main, backup = sys.modules["__main__"], {name: os.environ.get(name) for name in _VARIABLES}
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name, value in _VARIABLES.items():
        text = f"{backup[name]},{value}" if name == "PYTHONWARNINGS" and backup[name] else value
        os.environ[name] = text
    resource_tracker.ensure_running()  # its start unblocks SIGINT
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        sys.modules["__main__"] = main
        for name, old_value in backup.items():
            del os.environ[name]
            if old_value is not None:
                os.environ[name] = old_value


class _Child:
    """One task in one process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.log: IO[bytes] = tempfile.TemporaryFile("a+b", prefix="attnbench-")  # noqa: SIM115 -- end()
        context: Any = multiprocessing.get_context("fork") if task.fork else _context()
        self.receiver, sender = context.Pipe(duplex=False)
        # a connection, since multiprocessing passes these on
        log = connection.Connection(os.dup(self.log.fileno()), readable=False)
        # variables that were set since the server was started count too
        arguments = (sender, log, task.with_variables())
        self.process = context.Process(target=child.serve, args=arguments)
        with sender, log, _launch_environment():
            self.process.start()
        self.last_event_s = time.monotonic()

    def poll(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        try:
            while self.receiver.poll():
                kind, content = self.receiver.recv()
                self.last_event_s = time.monotonic()
                if kind == "raised":
                    text, error, line = content
                    yield Event(self.task, "raised", reason=text, error=error, raised=line)
                    return
                yield Event(self.task, kind, content)
                if kind == "done":
                    return
        except (EOFError, OSError):
            self.process.join(timeout=1.0)
            yield Event(self.task, "crashed", reason=end_text(self.process.exitcode, self.log))
            return
        except Exception as error:  # a dying process may have written half a pickle
            reason = f"its process sent something that cannot be read: {error!r}"
            yield Event(self.task, "crashed", reason=reason)
            return
        if time.monotonic() - self.last_event_s > self.task.timeout_s:
            reason = f"no answer within {self.task.timeout_s:g} s{self._stack_text()}"
            yield Event(self.task, "timeout", reason=reason)
            return
        memory = self._memory()
        if memory > self.task.memory_gib * GIB:
            cap = self.task.memory_gib
            reason = f"its process took {memory / GIB:.2f} GiB, over the cap of {cap:g} GiB"
            yield Event(self.task, "crashed", reason=reason, over_memory=True)

    def _memory(self) -> int:
        if os.fstat(self.log.fileno()).st_size > _MOST_LOG_BYTES:
            self.log.truncate(0)  # opened for appending, so writing continues at the start
        try:
            return int(psutil.Process(self.process.pid).memory_info().rss)
        except psutil.Error:
            return 0  # it has just ended, as the next read of the pipe shows

    def _stack_text(self) -> str:
        """The end of the output, with the stack of the process as it is now."""
        size = os.fstat(self.log.fileno()).st_size
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.process.pid or 0, child.STACK_SIGNAL)
        deadline = time.monotonic() + _STACK_S
        while os.fstat(self.log.fileno()).st_size == size and time.monotonic() < deadline:
            time.sleep(_STACK_S / 20)
        return log_tail(self.log)

    def end(self) -> None:
        """Kill the process and its children."""
        kill_group(self.process.pid)
        with contextlib.suppress(ProcessLookupError, AttributeError):
            self.process.kill()  # it may not have its own process group yet
        self.process.join(timeout=2.0)
        self.receiver.close()
        self.log.close()
