"""The child's side of a task: run its function and send the results."""

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
from multiprocessing import connection
from typing import Any

from attnbench import errors
from attnbench.processes.task import Task

STACK_SIGNAL = signal.SIGUSR1
"""The signal at which a child writes its stack to standard error."""


def serve(
    sender: connection.Connection,
    log: connection.Connection,
    task: Task,
    variables: Mapping[str, str],
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
    os.environ.update(variables, TORCHINDUCTOR_COMPILE_THREADS="1")
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
    kind = type(error)
    if not isinstance(error, errors.AttnbenchError) or not kind.__module__.startswith("attnbench."):
        return None
    if kind.__module__ == errors.__name__:
        return error
    known: type[errors.AttnbenchError] = next(
        base for base in kind.__mro__ if base.__module__ == errors.__name__
    )
    return known(str(error))


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
