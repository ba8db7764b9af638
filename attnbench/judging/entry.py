"""How a candidate's process begins: in a cell, with limits, and with what is passed on to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.judging.refusals import RefusedError
from attnbench.judging.shared_bytes import SharedBytes

__all__ = ["Limits", "enter"]

_HERE = Path(__file__).parent
_THREADS = 1
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH", "LIBRARY_PATH")


@dataclass(frozen=True)
class Limits:
    """What a candidate may use.

    Args:
        memory_gib: memory of its processes together.
        call_s: seconds for an answer.
        load_s: seconds for loading.
        shared_mib: memory for the inputs and outputs of a call.
    """

    memory_gib: float = 4.0
    call_s: float = 60.0
    load_s: float = 120.0
    shared_mib: int = 512


def enter(
    callees: Sequence[tuple[str, str]],
    limits: Limits,
    paths: Sequence[str],
    scratch: str,
    shared: SharedBytes,
    channel: int,
) -> tuple[int, list[str], dict[str, str]]:
    """Start a candidate's process.

    Args:
        callees: file or module, and attribute or ``""``, of each callee.
        limits: what it may use.
        paths: folders to import from, besides a file's own.
        scratch: the only folder that it may write to.
        shared: memory for inputs and outputs.
        channel: file descriptor of its end of the channel.

    Returns:
        Its process id, the restrictions that hold, and those that do not with the reasons.

    Raises:
        RefusedError: the process could not be started.
    """
    told = {
        "channel": channel,
        "memory": shared.file,
        "size": shared.size,
        "threads": _THREADS,
        "callees": list(callees),
        "paths": list(paths),
    }
    memory = int(limits.memory_gib * 2**30)
    cell = {
        "command": [sys.executable, "-I", str(_HERE / "candidate.py"), json.dumps(told)],
        "environment": _environment(scratch),
        "core": max(os.sched_getaffinity(0)),
        "scratch": scratch,
        "scratch_bytes": memory // 4,
        "file_size": memory // 4,
        "memory": memory + shared.size,
    }
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", str(_HERE / "cell.py"), json.dumps(cell), str(writing)]
    nowhere = subprocess.DEVNULL
    try:
        subprocess.run(  # noqa: S603  # our own script
            command,
            pass_fds=(channel, shared.file, writing),
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            check=True,
        )
    finally:
        os.close(writing)
        with os.fdopen(reading) as lines:
            reports = {key: value for line in lines for key, value in json.loads(line).items()}
    if "error" in reports:
        raise RefusedError("not_loaded", f"its cell could not be made: {reports['error']}")
    return reports["pid"], reports["held"], reports["missing"]


def _environment(scratch: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    places = dict.fromkeys(("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), scratch)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(_THREADS))
    return {**passed, **places, **threads, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
