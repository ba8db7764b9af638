"""A process that runs tasks for another one: ``python -m attnbench.processes.host``.

Tasks are received and events are sent as pickles. A worker of a cluster is a daemon, so it
cannot start children with multiprocessing. It starts this process once instead, which runs each
task in a child with the same limits as on the command line. When its standard input is closed, the
process and its children end.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Sequence

from attnbench.processes.pool import Task, Workers, warm_up

Inbox = queue.SimpleQueue[Task | Sequence[str]]


def main() -> None:
    """Run the tasks from standard input, and write their events to standard output.

    The first object on standard input holds the names of modules to import in children.
    """
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output is not an event
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(inbox,), daemon=True).start()
    while True:
        task = inbox.get()
        if not isinstance(task, Task):
            warm_up(*task)
            continue
        with Workers() as workers:
            workers.submit(task)
            for event in workers.events():
                pickle.dump(event, sink)
                sink.flush()


def _read(inbox: Inbox) -> None:
    while True:
        try:
            inbox.put(pickle.load(sys.stdin.buffer))  # noqa: S301 -- of the worker that started us
        except Exception:
            os._exit(0)  # the parent has ended, or sent something else


if __name__ == "__main__":
    main()
