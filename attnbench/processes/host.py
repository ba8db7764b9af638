"""A process that runs tasks for another one: ``python -m attnbench.processes.host``.

Tasks are received and events are sent as lines of JSON. A worker of a cluster is a daemon, so it
cannot start children with multiprocessing. It starts this process once instead, which runs each
task in a child with the same limits as on the command line. When its standard input is closed, the
process and its children end.
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


def main() -> None:
    """Run the tasks from standard input, and write their events to standard output."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output is not an event
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
    os._exit(0)  # the parent has ended; the children end with this process


def _write(sink: Any, data: dict[str, Any]) -> None:
    sink.write(json.dumps(data) + "\n")
    sink.flush()


if __name__ == "__main__":
    main()
