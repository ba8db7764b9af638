"""A piece of work for a child process, and the child's side: run its function, send the results."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any

from attnbench import errors
from attnbench.distributions import PACKAGES

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a child writes its stack to standard error."""

MEMORY_GIB = 2.0


@dataclass(frozen=True)
class Task:
    """A piece of work for a child process.

    Args:
        name: name for messages.
        function: address of a function, ``package.module:function``. It is called with the
            arguments, and returns one value or yields several; values must be plain data, since
            they are pickled.
        arguments: keyword arguments, plain data.
        timeout_s: most seconds to the first value, and from one value to the next.
        memory_gib: most resident memory of the process, in GiB.
        threads: torch's threads within an operator.
        fork: fork the process from this one, which has torch and no further threads, and not from
            a server.
        folder: folder in which it runs, if that exists; by default this one.
        variables: variables of the environment that begin with ``ATTNBENCH_``; by default those of
            this process.
    """

    name: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 300.0
    memory_gib: float = MEMORY_GIB
    threads: int = 1
    fork: bool = False
    folder: str = ""
    variables: Mapping[str, str] | None = None

    def with_variables(self) -> Task:
        """The task with the variables of this process, if it has none yet."""
        if self.variables is not None:
            return self
        own = {name: text for name, text in os.environ.items() if name.startswith("ATTNBENCH_")}
        return replace(self, variables=own)


def serve(
    sender: connection.Connection,
    log: connection.Connection,
    task: Task,
) -> None:
    """Run the function of a task in this child, and send its results."""
    gc.freeze()  # scanning the server's imports for garbage would take 0.1 s
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    _detach(log.fileno())
    for name in [name for name in os.environ if name.startswith("ATTNBENCH_")]:
        del os.environ[name]
    if os.path.isdir(task.folder):
        os.chdir(task.folder)
    # inductor's compile processes would outlive a killed child
    os.environ.update(task.variables or {}, TORCHINDUCTOR_COMPILE_THREADS="1")
    try:
        for value in _values(task):
            sender.send(("value", value))
        sender.send(("done", None))
    except BaseException as error:
        if not isinstance(error, Exception | SystemExit | KeyboardInterrupt):
            raise
        own = _of_its_own(error)
        text = "".join(traceback.format_exception(error)).rstrip() if own is None else str(own)
        *_, line = (x for x in traceback.format_exception_only(error) if x[:1].strip())
        sender.send(("raised", (text, own, line.partition("\n")[0])))
    finally:
        sender.close()
        # do not wait for threads or atexit functions of a subject
        os._exit(0)


def _of_its_own(error: BaseException) -> errors.AttnbenchError | None:
    """An error that attnbench raised on purpose, of a class that a parent without torch has."""
    own = type(error).__module__.partition(".")[0] in PACKAGES
    if not own or not isinstance(error, errors.AttnbenchError):
        return None
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return error if type(error) is known else known(str(error))


def _values(task: Task) -> Iterator[Any]:
    with contextlib.suppress(ImportError):  # without torch, plugins can still be loaded
        import torch

        torch.set_num_threads(task.threads)
    module, _, name = task.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    result = function(**task.arguments)
    if inspect.isgenerator(result):
        yield from result
    else:
        yield result


def _detach(log: int) -> None:
    """Redirect the subject's output to the log, and exit when the parent process exits."""
    import faulthandler

    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", write_through=True)
    faulthandler.enable(file=2, all_threads=False)  # what a caller put there may be no file
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: Any) -> None:
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)
