"""The cluster worker's side: run a task through a host process, and name the machine."""

from __future__ import annotations

import json
import os
import pickle
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench.processes.pool import Event, Task

MACHINE_VARIABLE = "ATTNBENCH_MACHINE"
"""Environment variable of a worker with a name for its machine, instead of its host name."""

_LOOK_S = 0.5
_HOSTS = threading.local()


def run_task(task: bytes, setting: str) -> bytes:
    """Run a task and return its events; the last one says how it ended.

    Both are pickled here, since Dask would search containers for its keys and measure them.

    Args:
        task: the pickled :class:`~attnbench.processes.pool.Task`.
        setting: JSON: ``preload``, the modules to import in the children of a new host;
            ``variables`` of the environment in which the run was started; and its ``folder``, where
            the host starts if it exists there too, so that users' files are found.
    """
    host: subprocess.Popen[bytes] | None = getattr(_HOSTS, "process", None)
    if host is not None and _HOSTS.setting != setting and host.stdin is not None:
        host.stdin.close()  # ends a host that was started for another run
        host = None
    if host is None or host.poll() is not None:
        host = _HOSTS.process = _start_host(**json.loads(setting))
        _HOSTS.setting = setting
    events: list[Event] = []
    assert host.stdin is not None
    assert host.stdout is not None
    end = threading.Event()
    threading.Thread(target=_end_if_cancelled, args=(_own_task(), host, end), daemon=True).start()
    try:
        host.stdin.write(task)
        host.stdin.flush()
        while not events or events[-1].kind == "value":
            events.append(pickle.load(host.stdout))  # noqa: S301 -- of our own process
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        failed_task: Task = pickle.loads(task)  # noqa: S301 -- of the client, which may run code here
        events.append(
            Event(failed_task, "crashed", reason="the process that ran it for the worker ended")
        )
    finally:
        end.set()
    return pickle.dumps(events)


def _own_task() -> Any:
    """The worker's state of the task that this thread runs; ``None`` without a worker."""
    from distributed import get_worker

    try:
        worker = get_worker()
        return worker.state.tasks[worker.get_current_task()]
    except (KeyError, ValueError):
        return None


def _end_if_cancelled(task: Any, host: subprocess.Popen[bytes], end: threading.Event) -> None:
    """Kill the process of a task that was cancelled, since Dask does not stop its thread."""
    while task is not None and not end.wait(_LOOK_S):
        if task.state == "cancelled":
            host.terminate()
            return


def _start_host(
    preload: Sequence[str], variables: dict[str, str], folder: str
) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATTNBENCH_")}
    host = subprocess.Popen(
        [sys.executable, "-m", "attnbench.processes.host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, **variables},
        cwd=folder if os.path.isdir(folder) else None,
    )
    assert host.stdin is not None
    pickle.dump(tuple(preload), host.stdin)
    return host


def machine_facts() -> tuple[str, str]:
    """An identifier of the worker's machine, and its name.

    Host names may be ambiguous. Containers of one host share its boot id and compete for its cores.
    """
    name = os.environ.get(MACHINE_VARIABLE, "")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = platform.node()
    return f"{boot} {name}", name or platform.node()
