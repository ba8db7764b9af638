"""How a candidate's process begins, in a cell with limits, and what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from attnbench_judge.decision import RefusedError
from attnbench_judge.process.shared_bytes import SharedBytes

_SCRIPT = Path(__file__).with_name("starting.py")
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
        output: a copy of the output, not to be changed; ``None`` if the candidate raised an error.
        seconds: that all its threads and processes computed, from the moment it went on until it
            had stopped; see :class:`~attnbench_judge.process.process_account.Clocks`.
        idle_s: between these moments, without that and without waiting for a core.
        raised: name and text of the error that was raised.
    """

    output: Tensor | None
    seconds: float
    idle_s: float
    raised: tuple[str, str] | None = None


def enter(
    limits: Limits, scratch: str, shared: SharedBytes, channel: int
) -> tuple[int, list[str], dict[str, str]]:
    """Start a candidate's process, a child of this one.

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
    given = {
        "core": max(os.sched_getaffinity(0)),
        "scratch": scratch,
        "scratch_bytes": memory // 4,
        "file_size": memory // 4,
        "memory": memory + shared.size,
    }
    reading, writing = os.pipe()
    files = (channel, shared.file, writing)
    nowhere = subprocess.DEVNULL
    starter = subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, "-I", str(_SCRIPT), json.dumps(given), *map(str, files)],
        pass_fds=files,
        env=_environment(scratch),
        stdin=nowhere,
        stdout=nowhere,
        stderr=nowhere,
    )
    os.close(writing)
    with os.fdopen(reading) as lines:
        reports = {key: value for line in lines for key, value in json.loads(line).items()}
    starter.wait()
    if "held" not in reports:
        if "pid" in reports:
            os.waitpid(reports["pid"], 0)
        raise RefusedError("not_loaded", f"its cell could not be made: {reports.get('error')}")
    return reports["pid"], reports["held"], reports["missing"]


def _environment(scratch: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    places = dict.fromkeys(("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), scratch)
    return {**passed, **threads, **places, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
