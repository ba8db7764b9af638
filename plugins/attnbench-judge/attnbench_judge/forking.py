"""A script that imports torch once, and forks for each candidate a process in a cell.

No code of a candidate runs here, and nothing of the judge is here. A request is one message with
three files: the candidate's channel, the shared memory, and the pipe of reports. The message ``{}``
asks for the judge's assistant, whose channel is its only file. The assistant gets a process like
this for its own candidates before it learns anything.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).parent))

candidate, cell = map(importlib.import_module, ("candidate", "cell"))
sys.path.pop()


def serve(requests: socket.socket) -> None:
    """Answer requests until the channel closes."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not message:
            return
        # its parent is the judge, as that of the process in the cell, so it must end before
        helper = cell.fork_beside()
        given = json.loads(message)
        if helper == 0:
            requests.close()
            if not given:
                _assist(*files)
            os.environ.update(given["environment"])
            channel, memory, report = files
            cell.enter(given, report, partial(candidate.main, channel, memory))
            os._exit(0)
        for file in files:
            os.close(file)
        if given:
            requests.send(str(helper).encode())


def _assist(channel: int) -> NoReturn:
    """Become the assistant."""
    cell.die_with_parent(signal.SIGTERM)
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        os.close(channel)
        requests.close()
        serve(theirs)
        os._exit(0)
    theirs.close()
    told = importlib.import_module("multiprocessing.connection").Connection(channel)
    sys.path[:], sys.pycache_prefix, sys.dont_write_bytecode = told.recv()
    importlib.import_module("attnbench_judge.assistant").main(told, requests)
    os._exit(0)


if __name__ == "__main__":
    gc.freeze()  # so that collecting in a candidate's process does not look at all of torch
    serve(socket.socket(fileno=int(sys.argv[1])))
