"""How a candidate's process begins, in a cell with limits, and what it answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench_judge.decision import RefusedError

if TYPE_CHECKING:  # what is here starts a process before torch is imported
    from multiprocessing.connection import Connection

    from torch import Tensor

    from attnbench_judge.shared_bytes import SharedBytes

_HERE = Path(__file__).parent
THREADS = 1
SETTLED_BYTES = 31 * 2**20
"""glibc raises its mmap threshold to at most 32 MiB, including its header of a block."""
_ENDED = "the process that starts candidates has ended"
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH", "LIBRARY_PATH")


@dataclass(frozen=True)
class Limits:
    """What a candidate may use.

    Args:
        memory_gib: memory of its processes together.
        call_s: seconds for an answer.
        total_s: seconds for all answers of a process together.
        load_s: seconds for loading.
        shared_mib: memory for the inputs and outputs of a call.
    """

    memory_gib: float = 4.0
    call_s: float = 60.0
    total_s: float = 900.0
    load_s: float = 120.0
    shared_mib: int = 512


@dataclass(frozen=True)
class Answer:
    """An answer to a request.

    Args:
        output: a copy of the output, not to be changed before the next call; ``None`` if the
            candidate raised an error.
        seconds: that all its threads and processes computed, from the moment it went on until it
            had stopped; see :class:`~attnbench_judge.process_account.ComputingClock`.
        idle_s: between these moments, without that and without waiting for a core.
        raised: name and text of the error that was raised.
    """

    output: Tensor | None
    seconds: float
    idle_s: float
    raised: tuple[str, str] | None = None


class Nursery:
    """The process from which those of candidates are forked, so that torch is imported once.

    Args:
        requests: the channel from which it reads requests, if it runs already.
    """

    def __init__(self, requests: socket.socket | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = requests
        self._assistant: Connection | None = None

    def begin(self) -> socket.socket:
        """Start the process, unless it runs; the channel from which it reads requests."""
        ended = self._process is not None and self._process.poll() is not None
        if self._requests is not None and not ended:
            return self._requests
        self.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nowhere = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own script
                [sys.executable, "-I", str(_HERE / "forking.py"), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=_environment(),
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
            )
        return self._requests

    def enter(
        self, limits: Limits, scratch: str, shared: SharedBytes, channel: int
    ) -> tuple[int, list[str], dict[str, str]]:
        """Start a candidate's process.

        Args:
            limits: what it may use.
            scratch: the only folder that it may write to.
            shared: memory for inputs and outputs.
            channel: file descriptor of its end of the channel.

        Returns:
            Its process id, the restrictions that hold, and those that do not with the reasons.

        Raises:
            RefusedError: the process could not be started.
        """
        memory = int(limits.memory_gib * 2**30)
        places = dict.fromkeys(("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), scratch)
        given = {
            "environment": places,
            "core": max(os.sched_getaffinity(0)),
            "scratch": scratch,
            "scratch_bytes": memory // 4,
            "file_size": memory // 4,
            "memory": memory + shared.size,
        }
        requests = self.begin()
        reading, writing = os.pipe()
        try:
            files = [channel, shared.file, writing]
            socket.send_fds(requests, [json.dumps(given).encode()], files)
        except OSError as error:
            os.close(reading)
            self._requests = None  # the next candidate gets another one
            raise RefusedError("not_loaded", _ENDED) from error
        finally:
            os.close(writing)
        with os.fdopen(reading) as lines:
            helper = requests.recv(64)
            if not helper:
                raise RefusedError("not_loaded", _ENDED)
            reports = {key: value for line in lines for key, value in json.loads(line).items()}
        os.waitpid(int(helper), 0)
        if "error" in reports:
            os.waitpid(reports["pid"], 0)
            raise RefusedError("not_loaded", f"its cell could not be made: {reports['error']}")
        return reports["pid"], reports["held"], reports["missing"]

    def begin_assistant(self) -> None:
        """Start a process that helps the judge, which has a nursery of its own."""
        from multiprocessing import Pipe

        requests = self.begin()
        self._assistant, theirs = Pipe()
        with theirs:
            socket.send_fds(requests, [b"{}"], [theirs.fileno()])
        self._assistant.send((sys.path, sys.pycache_prefix, sys.dont_write_bytecode))

    def assistant(self) -> Connection:
        """The channel to a process that :meth:`begin_assistant` started; no other gets it."""
        if self._assistant is None:
            self.begin_assistant()
        assert self._assistant is not None
        found, self._assistant = self._assistant, None
        return found

    def close(self) -> None:
        """End the process, and an assistant that nobody has asked for."""
        if self._assistant is not None:
            self._assistant.close()
            self._assistant = None
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._requests = None


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
    return {**passed, **threads, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
