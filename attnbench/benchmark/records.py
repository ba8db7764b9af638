"""Records: one line of JSON for each process that measured a subject at a case.

A file holds a run. It is append-only, safe with several writers, and loses at most the line that is
written when its writer is killed. What several processes say together (medians, intervals, gains)
is computed when lines are read; see :mod:`attnbench.benchmark.frames`. This module does not import
torch.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attnbench.errors import RecordError

BASELINE = "scaled_dot"
"""The subject with which every subject but layers is paired, including itself."""

LAYER_BASELINE = "causal_attention"
"""The layer with which every layer is paired, including itself."""

BASELINES = (BASELINE, LAYER_BASELINE)
"""Both baselines, unless a run names another."""

SCHEMA = 2
"""Version of the fields; increased when one that is read is removed or changes its meaning."""

FORMAT = "attnbench-record"
_PREFIX = f'{{"format":"{FORMAT}"'.encode()

STATUSES = {
    "ok": "agreed with the reference on this case",
    "unverified": "did not agree with the reference on this case, or could not be compared; "
    "not ranked",
    "unsupported": "the subject does not support this case; not measured",
    "out_of_memory": "the case does not fit in this machine's memory; not measured",
    "timeout": "the time limit passed; not measured",
    "failed": "the subject raised an error; not measured",
    "crashed": "the subject's process ended; not measured",
}
"""Every status of a record; only ``ok`` may be ranked."""


def baseline_of(kind: str, baselines: tuple[str, str] = BASELINES) -> str:
    """The name of the subject with which subjects of a kind are paired."""
    return baselines[kind == "layer"]


def scoring_address(kernel: str) -> str:
    """The address of a kernel's scoring function, with the options kept."""
    name, bracket, options = kernel.partition("(")
    return name.rpartition("/")[0] + bracket + options


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that orders numbers in a text by size."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def half_width(low: float | None, high: float | None) -> float | None:
    """Half the width of a ratio's interval, as a share of the ratio; ``None`` if it is unknown.

    Args:
        low, high: the ends of the interval; ``None``, or 0 and infinity, if it is unknown.
    """
    return math.expm1(math.log(high / low) / 2) if low and high else None


@dataclass(frozen=True, kw_only=True)
class Record:
    """One subject at one case under one contract: of one process, or of several together.

    Times are those of one call, in seconds; ``direction`` says what a call computes. A line of a
    file is of one process; :func:`attnbench.benchmark.frames.summaries` gives what the processes of
    a run say together, with the same fields. The facts that one process is enough for (error,
    memory, first call) are in the line of the first one.

    Args:
        run: id of the run, which is also the name of its file.
        created: time of creation, ISO 8601 in UTC.
        contract: name of the contract; see
            :class:`attnbench.benchmark.contract.Contract`.
        subject: address of the subject.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        case: stable id of the case.
        process: number of the pass over all rows to which the process belongs, from 0.
        workload: displayed name of the workload or grid that the case comes from.
        lead, q_len, kv_len, query_size, key_size, value_size, kv_heads: sizes; ``kv_heads`` is the
            number of key and value heads if they are grouped, else ``None``.
        dtype, device, mask, seed: as in :class:`attnbench.Case`; the device is the torch name.
        direction: ``forward`` or ``forward_backward``; for a layer ``prefill`` or ``decode``, where
            ``q_len`` is the number of tokens of a call.
        cache: ``warm`` or ``cold``.
        timing: ``call``, as a user calls it, or ``device``, by a replayed CUDA graph.
        clock: clock that timed the slots.
        status: a key of :data:`STATUSES`.
        reason: why the status is not ``ok``.
        baseline: subject that it was paired with; ``None`` if there is no ratio.
        ratio: time over the baseline's, both measured in turn in the same process; together, the
            geometric mean over processes.
        ratio_low, ratio_high: 95 % interval of the ratio, over the blocks of a single process, else
            over processes.
        ratios: together: ratio of each process.
        gain: together, for a kernel: the time of its scoring function over its own.
        time_s: a low quantile of slots, as the contract says; together, the median over processes.
        time_q1_s, time_q3_s: quartiles over processes if there are at least three, else over slots.
        times_s: together: time of each process.
        samples_s: each slot: the mean time of ``calls`` consecutive calls.
        calls: calls in a slot.
        first_call_s: time of the first call in the process, including compilation.
        compile_s: of that, the time that compilers took: 0 if nothing was compiled.
        compiled: ``compiled`` if the first call compiled anything, ``cache`` if all of it came from
            a cache, and empty if there was nothing to compile.
        peak_bytes: most bytes alive during a call beyond those alive before it, which include
            inputs and parameters.
        tokens_per_s: for a layer: tokens of a call, over all items, per second.
        cache_bytes_per_token: for a layer that decodes: bytes of its cache per token given to it.
        error_abs: largest absolute error of the output against float64.
        error_ratio: largest error over the allowed error; at most 1 if they agree.
        error_rows: number of query rows compared.
        sentinel: ceilings of the machine.
        load: cores kept busy by other processes, number of cores, share of disturbed slots, and
            share of time stolen by a hypervisor.
        inputs: path and SHA-256 of the file of saved inputs, if the case has one.
        threads: torch's threads within an operator.
        machine: node, system, processor, cores and memory; in a cluster also the machine's name.
        device_name: name of the processor or accelerator that computed.
        versions: versions of python, torch, attnbench, and the subject's distribution.
        accelerator: for an accelerator: versions of CUDA, cuDNN and the driver, whether TF32 is
            allowed, and its clocks after the measurement with the reasons if they were low.
        runs_as: for a kernel with several code paths: the one that ran.
        commit: git commit of the working directory, with ``+dirty`` if files differ; or ``""``.
        command: command line of the run.
    """

    run: str
    created: str
    contract: str
    subject: str
    case: str
    direction: str
    dtype: str
    device: str
    status: str
    process: int = 0
    kind: str = "scoring"
    workload: str = ""
    lead: tuple[int, ...] = ()
    q_len: int = 0
    kv_len: int = 0
    query_size: int = 0
    key_size: int = 0
    value_size: int = 0
    kv_heads: int | None = None
    mask: str = "none"
    seed: int = 0
    cache: str = "warm"
    timing: str = "call"
    clock: str = ""
    reason: str = ""
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratios: tuple[float, ...] = ()
    gain: float | None = None
    time_s: float | None = None
    time_q1_s: float | None = None
    time_q3_s: float | None = None
    times_s: tuple[float, ...] = ()
    samples_s: tuple[float, ...] = ()
    calls: int = 1
    first_call_s: float | None = None
    compile_s: float | None = None
    compiled: str = ""
    peak_bytes: int | None = None
    tokens_per_s: float | None = None
    cache_bytes_per_token: float | None = None
    error_abs: float | None = None
    error_ratio: float | None = None
    error_rows: int = 0
    sentinel: Mapping[str, float] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, str] | None = None
    threads: int = 1
    machine: Mapping[str, Any] = field(default_factory=dict)
    device_name: str = ""
    accelerator: Mapping[str, Any] = field(default_factory=dict)
    runs_as: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    command: str = ""
    schema: int = SCHEMA

    @property
    def machine_name(self) -> str:
        """The name of the machine in its cluster; empty without a cluster."""
        return str(self.machine.get("name", ""))

    @property
    def where(self) -> str:
        """The device that computed and, in a cluster, its machine, since devices may be alike."""
        return f"{self.device_name} of {self.machine_name}".removesuffix(" of ")

    @property
    def key(self) -> tuple[str, str, str]:
        """The contract, subject and case, which identify a row of a run."""
        return self.contract, self.subject, self.case

    def to_json(self) -> str:
        """Convert to one line of JSON, without a newline."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str = "record") -> Record:
        """Parse one line of JSON.

        Raises:
            RecordError: the line is damaged, not a record of attnbench, or of another version.
        """
        content = _checked(text, where)
        specs = {f.name: f for f in fields(cls)}
        missing = [
            name
            for name, f in specs.items()
            if f.default is MISSING and f.default_factory is MISSING and name not in content
        ]
        if missing:
            raise RecordError(f"{where} is damaged: it lacks {', '.join(missing)}.")
        if content["status"] not in STATUSES:
            raise RecordError(f"{where} has the unknown status {content['status']!r}.")
        values = {name: value for name, value in content.items() if name in specs}
        given: dict[str, Any] = {n: tuple(v) if type(v) is list else v for n, v in values.items()}
        return cls(**given)


def _checked(text: str, where: str) -> dict[str, Any]:
    """The object of a line, which is a record of this version."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{where} is damaged: it is not JSON ({error}).") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RecordError(
            f'{where} is not a record of attnbench: it has no "format": "{FORMAT}". '
            "Keep other files out of the folder of records."
        )
    schema = content.get("schema")
    if schema != SCHEMA:
        age = "a newer" if isinstance(schema, int) and schema > SCHEMA else "an older"
        advice = "upgrade attnbench" if age == "a newer" else "measure again"
        raise RecordError(
            f"{where} was written by {age} attnbench: its schema is {schema!r}, and this one "
            f"reads {SCHEMA}; {advice}, or move the file away."
        )
    return content


def new_run() -> str:
    """Make the id of a new run: the time in UTC, and random digits for runs in the same second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def run_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / f"{run}.jsonl"


def runs_in(folder: Path) -> list[str]:
    """The ids of the runs in a folder, the newest first."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: -path.stat().st_mtime)
    return [path.stem for path in files]


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of writing a file in this context to a :class:`RecordError`."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; name another folder with --results"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = "there is no space left; free some, or name another folder with --results"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = (
                "it may not be written to; change its permissions, or name another with --results"
            )
        text = f"cannot write to {path}: {reason}. What was recorded before is kept."
        raise RecordError(text) from None


def check_writable(folder: Path) -> None:
    """Create a folder of records and check that it is writable, before anything is measured.

    Raises:
        RecordError: the folder cannot be created or written.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-") as file:
            file.write(b"x")


def claim(path: Path) -> FileLock:
    """Lock a run's file for this process, until the lock is released or the process ends.

    Raises:
        RecordError: another process is recording this run.
    """
    lock = FileLock(path.with_suffix(".running"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(
            f"run {path.stem!r} is being recorded by another process; wait until it ends, or "
            "choose another name with --run."
        ) from None
    atexit.register(release, lock)  # also if the run is refused before it begins
    return lock


def release(lock: FileLock) -> None:
    """Release a lock of :func:`claim`; further calls have no effect."""
    if lock.is_locked:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def append(path: Path, record: Record) -> None:
    """Append a record to a file, entirely or not at all; several processes may do so at once.

    An incomplete last line, left by a killed writer, is removed first.

    Raises:
        RecordError: the folder or the file cannot be written, or there is no space left.
    """
    line = (record.to_json() + "\n").encode()
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = _mend(descriptor)
                _write_whole(descriptor, line, size)
            finally:
                os.close(descriptor)


def _mend(descriptor: int) -> int:
    """Add a missing newline to the last line, or remove an incomplete one; returns the size."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    line = os.pread(descriptor, size, 0).rpartition(b"\n")[2]
    if not _is_torn(line):
        return size + os.write(descriptor, b"\n")
    os.ftruncate(descriptor, size - len(line))
    return size - len(line)


def _is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of a record, but incomplete."""
    begin = min(len(line), len(_PREFIX))
    if line[:begin] != _PREFIX[:begin]:
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _write_whole(descriptor: int, line: bytes, size: int) -> None:
    """Write a line with one call; if the disk is full, remove the part that was written."""
    try:
        count = os.write(descriptor, line)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    if count != len(line):
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def content_of(path: Path) -> bytes:
    """The content of a file.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from None


def read(path: Path) -> list[Record]:
    """Read the lines of a file; an incomplete last line is ignored.

    Raises:
        RecordError: the file cannot be read, or a line is damaged, not attnbench's, or of another
            version.
    """
    lines = content_of(path).split(b"\n")
    if _is_torn(lines[-1]):
        lines.pop()
    return [
        Record.from_json(line.decode("utf-8", errors="replace"), f"{path}, line {number},")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def run_files(sources: Iterable[Path]) -> list[Path]:
    """The files of runs among files and folders.

    Raises:
        RecordError: a source does not exist, or is a folder without records.
    """
    paths: list[Path] = []
    for source in sources:
        files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
        if not source.exists() or not files:
            raise RecordError(f"there are no records at {source}; 'attnbench run' writes some.")
        paths += files
    return paths
