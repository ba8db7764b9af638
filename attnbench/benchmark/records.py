"""Records: one line of JSON for each process that measured a subject at a case.

A file holds a run and has one writer, which is killed at the price of the line that it writes. What
several processes say together (medians, intervals, gains) is computed when lines are read; see
:mod:`attnbench.benchmark.frames`. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attnbench.errors import RecordError

BASELINES = ("scaled_dot", "causal_attention")
"""What attention, and what a layer is paired with, itself included, unless a run names another."""

SCHEMA = 2
"""Version of the fields; increased when one that is read is removed or changes its meaning."""

FORMAT = "attnbench-record"

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

    Times are those of one call, in seconds. A line of a file is of one process;
    :func:`attnbench.benchmark.frames.summaries` gives what the processes of a run say together,
    with the same fields. Error, memory and first call are in the line of the first process only.

    Args:
        run: id of the run, which is also the name of its file.
        created: time of creation, ISO 8601 in UTC.
        contract: name of the contract; see :class:`attnbench.benchmark.timing.contract.Contract`.
        subject, kind: address of the subject; ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        case: stable id of the case.
        process: number of the pass over all rows to which the process belongs, from 0.
        workload: displayed name of the workload or grid that the case comes from.
        lead, q_len, kv_len, query_size, key_size, value_size, dtype, device, mask, seed: as in
            :class:`attnbench.Case`; of a layer, ``q_len`` is the number of tokens of a call.
        kv_heads: number of key and value heads if they are grouped, else ``None``.
        direction, cache, timing: keys of the tables of :mod:`attnbench.benchmark.timing.contract`.
        clock: clock that timed the slots.
        status, reason: a key of :data:`STATUSES`, and why it is not ``ok``.
        baseline: subject that it was paired with; ``None`` if there is no ratio.
        ratio: time over the baseline's, both measured in turn in the same process; together, the
            geometric mean over processes.
        ratio_low, ratio_high: 95 % interval of the ratio, over the blocks of a single process, else
            over processes.
        ratios, times_s: together: ratio and time of each process.
        gain: together, for a kernel: the time of its scoring function over its own.
        time_s: a low quantile of slots, as the contract says; together, the median over processes.
        samples_s: each slot: the mean time of ``calls`` consecutive calls.
        first_call_s: time of the first call in the process, including compilation.
        compile_s: of that, the time that compilers took: 0 if nothing was compiled.
        compiled: ``compiled`` if the first call compiled anything, ``cache`` if all of it came from
            a cache, and empty if there was nothing to compile.
        peak_bytes: most bytes alive during a call beyond those alive before it, which include
            inputs and parameters.
        tokens_per_s: for a layer: tokens of a call, over all items, per second.
        cache_bytes_per_token: for a layer that decodes: bytes of its cache per token given to it.
        error_abs, error_ratio, error_rows: largest absolute error of the output against float64,
            and over the allowed error, at most 1 if they agree; query rows compared.
        sentinel: ceilings of the machine.
        load: cores kept busy by other processes, number of cores, share of disturbed slots.
        inputs: path and SHA-256 of the file of saved inputs, if the case has one.
        threads: torch's threads within an operator.
        machine: node, system, processor, cores and memory.
        device_name: name of the processor or accelerator that computed.
        versions: versions of python, torch, attnbench, and the subject's distribution.
        accelerator: for CUDA: its version and cuDNN's, and whether TF32 is allowed.
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
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{where} is damaged: it is not JSON ({error}).") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RecordError(
                f'{where} is not a record of attnbench: it has no "format": "{FORMAT}". '
                "Keep other files out of the folder of records."
            )
        if (schema := content.get("schema")) != SCHEMA:
            is_newer = isinstance(schema, int) and schema > SCHEMA
            age, advice = ("newer", "upgrade") if is_newer else ("older", "measure again")
            raise RecordError(
                f"{where} was written by a version of attnbench that is {age}: its schema is "
                f"{schema!r}, and this one reads {SCHEMA}; {advice}, or move the file away."
            )
        names = {f.name for f in fields(cls)}
        given: dict[str, Any] = {
            n: tuple(v) if type(v) is list else v for n, v in content.items() if n in names
        }
        try:
            return cls(**given)
        except TypeError as error:
            raise RecordError(f"{where} is damaged: {error}.") from None


def new_run() -> str:
    """Make the id of a new run: the time in UTC, and random digits for runs in the same second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def run_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / f"{run}.jsonl"


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert errors of writing a file in this context to a :class:`RecordError`."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write to {path}: {error.strerror or error}. What was recorded before is kept; "
            "name another folder with --results."
        ) from None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock a run's file for this process in this context.

    Raises:
        RecordError: another process is recording this run, or the folder cannot be written.
    """
    lock = FileLock(path.with_suffix(".running"))
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RecordError(
                f"run {path.stem!r} is being recorded by another process; wait until it ends, or "
                "choose another name with --run."
            ) from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def append(path: Path, record: Record) -> None:
    """Append a record to the file of a run; an incomplete last line is removed first.

    Raises:
        RecordError: the folder or the file cannot be written, or there is no space left.
    """
    line = (record.to_json() + "\n").encode()
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            file.seek(0)
            file.truncate(len(_whole_lines(file.read())))
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _whole_lines(content: bytes) -> bytes:
    """The content of a file without its last line, if the writer was killed in it."""
    return content[: content.rfind(b"\n") + 1]


def read(path: Path) -> list[Record]:
    """Read the lines of a file; an incomplete last line is ignored.

    Raises:
        RecordError: the file cannot be read, or a line is damaged, not attnbench's, or of another
            version.
    """
    try:
        lines = _whole_lines(path.read_bytes()).decode(errors="replace").split("\n")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from None
    return [
        Record.from_json(line, f"{path}, line {number},")
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
