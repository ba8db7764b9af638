"""A script that imports torch once, and forks for each candidate a process in a cell.

No code of a candidate runs here, and nothing of the judge is here. A request is one message with
three files: the candidate's channel, the shared memory, and the pipe of reports.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

candidate, cell = map(importlib.import_module, ("candidate", "cell"))
sys.path.pop()


def main() -> None:
    """Answer requests until the channel, whose number is the argument, closes."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()  # so that collecting in a candidate's process does not look at all of torch
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not message:
            return
        # its parent is the judge, as that of the process in the cell, so it must end before
        helper = cell.fork_beside()
        if helper == 0:
            requests.close()
            given = json.loads(message)
            os.environ.update(given["environment"])
            channel, memory, report = files
            cell.enter(given, report, partial(candidate.main, channel, memory))
            os._exit(0)
        for file in files:
            os.close(file)
        requests.send(str(helper).encode())


if __name__ == "__main__":
    main()
