"""One side of a comparison, and the process that serves it.

The process runs
:mod:`attnbench.benchmark.comparing.server`, and is asked by lines of JSON. The
process that uses this module does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attnbench.errors import UsageError

_SERVER = ("-m", "attnbench.benchmark.comparing.server")
_START_S = 180.0


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: displayed name: a revision, a file or a distribution.
        folder: folder in which addresses are looked up.
        roots: folders put first on the side's ``sys.path``.
        inside: folder that must contain the code of its subjects; ``None`` for any.
    """

    name: str
    folder: Path
    roots: tuple[Path, ...] = ()
    inside: Path | None = None


class Unmeasured(Exception):  # noqa: N818 -- a result for a row, not an error of attnbench
    """A row cannot be compared; the message says why."""


class Server:
    """The server of one side.

    Raises:
        UsageError: the side's plugins cannot be imported.
    """

    def __init__(self, side: Side, threads: int) -> None:
        self.side = side
        self._buffer = b""
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="attnbench-")  # noqa: SIM115 -- end()
        path = os.pathsep.join([*map(str, side.roots), os.environ.get("PYTHONPATH", "")])
        variables = {
            **os.environ,
            "PYTHONPATH": path.strip(os.pathsep),
            "PYTHONHASHSEED": "0",
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        self._process = subprocess.Popen(  # noqa: S603 -- this Python, and a module of ours
            [sys.executable, *_SERVER, str(threads)],
            cwd=side.folder,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C then reaches only this process, which ends the server
        )

    def wait(self) -> int:
        """Wait until the server has imported the plugins; returns the version of its contracts.

        Raises:
            UsageError: the import failed or took too long.
        """
        try:
            answer = self._answer(_START_S)
        except Late:
            raise UsageError(
                f"{self.side.name} was not imported within {_START_S:g} s: torch or one of its "
                f"plugins hangs.{self.log_tail()}"
            ) from None
        if "error" in answer:
            raise UsageError(f"{self.side.name} cannot be imported: {answer['error']}")
        return int(answer["contract"])

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send an order and return the answer.

        Raises:
            Unmeasured: the child raised, died, or did not answer in time.
        """
        self.tell(order)
        answer = self._answer(timeout_s)
        if "error" in answer:
            raise Unmeasured(f"{self.side.name}: {answer['error']}")
        if "ended" in answer:
            code = answer["ended"]
            end = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            raise Ended(f"{self.side.name}: its process ended with {end}")
        return answer

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise UsageError(f"{self.side.name}: its process is gone.{self.log_tail()}") from None

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], remaining)[0]:
                raise Late(f"{self.side.name}: no answer within {timeout_s:g} s")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise UsageError(f"{self.side.name} cannot be run.{self.log_tail()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log_tail(self) -> str:
        """The end of what the process wrote to its standard error."""
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").strip().splitlines()
        return "".join(f"\n  | {line}" for line in lines[-8:])

    def end(self) -> None:
        """Kill the server and its child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class AnotherAnswer(Unmeasured):
    """The two sides give different answers."""


class Ended(Unmeasured):
    """The child's process has ended."""


class Late(Unmeasured):
    """The child did not answer in time."""
