"""What the tests of workers run in child processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attnbench.errors import UnknownNameError


def described(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "threads": torch.get_num_threads(),
        "variable": os.environ.get("ATTNBENCH_DISABLED_PLUGINS"),
        "sum": float(torch.ones(number, number).sum()),
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }


def many(count: int, pause: float = 0.0) -> Iterator[int]:
    for number in range(count):
        time.sleep(pause)
        yield number


def noisy() -> str:
    print("on standard output")
    print("on standard error", file=sys.stderr)
    return "quiet"


def hang_after(count: int) -> Iterator[int]:
    yield from range(count)
    time.sleep(600)


def hang_with_child() -> Iterator[list[int]]:
    child = subprocess.Popen(["sleep", "600"])
    yield [os.getpid(), child.pid]
    time.sleep(600)


def hang_and_say(path: str) -> None:
    whole = Path(f"{path}.new")
    whole.write_text(str(os.getpid()))
    whole.rename(path)
    time.sleep(600)


def kill_itself() -> None:
    print("about to die", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_cluster_worker() -> None:
    """End the worker of a cluster that this runs for."""
    worker = multiprocessing.parent_process()
    assert worker is not None
    os.kill(worker.pid or 0, signal.SIGKILL)
    time.sleep(600)


def segfault() -> None:
    ctypes.string_at(0)


def say_over_the_cap_and_leave() -> None:
    print("over the cap", file=sys.stderr)
    os._exit(7)


def leave() -> None:
    os._exit(7)


def leave_a_semaphore() -> None:
    """Make a semaphore with a name, as tqdm does, and end without freeing it."""
    lock = multiprocessing.get_context("spawn").Lock()
    with lock:
        os.kill(os.getpid(), signal.SIGKILL)


def raise_value_error() -> None:
    raise ValueError("not what was hoped for")


def raise_own() -> None:
    raise UnknownNameError("no such thing; did you mean 'thing'?")


def raise_exit() -> None:
    raise SystemExit(5)
