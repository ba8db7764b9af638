"""A process that runs tasks for another one: ``python -m attnbench.processes.host``.

Tasks come, and events go, as lines of JSON. A worker of a cluster may not fork children of
multiprocessing, being a daemon; so it starts this process once, and this one runs each task in a
child as the command line does, with the same limits. It ends, and its children with it, when its
standard input does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from attnbench.processes.plain import plain_event, task_of
from attnbench.processes.pool import Workers, warm_up

__all__ = ["main"]


def main() -> None:
    """Run the tasks that come by standard input; write what happens to standard output."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anything else prints is no event
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        given = json.loads(lines.get())
        if "preload" in given:
            warm_up(*given["preload"])
            continue
        with Workers() as workers:
            workers.submit(task_of(given))
            for event in workers.events():
                _write(sink, plain_event(event))


def _read(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # whoever started this process is gone, and children follow it


def _write(sink: Any, data: dict[str, Any]) -> None:
    sink.write(json.dumps(data) + "\n")
    sink.flush()


if __name__ == "__main__":
    main()
