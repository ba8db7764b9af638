"""Files of records: one per run, append-only, safe with several writers and when killed."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from attnbench.benchmark.records.record import FORMAT, Record
from attnbench.errors import RecordError

_PREFIX = f'{{"format":"{FORMAT}"'.encode()


def new_run() -> str:
    """Make the id of a new run: the time in UTC, and random digits for runs in the same second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def run_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / f"{run}.jsonl"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of writing a file of records in this context.

    Raises:
        RecordError: the file cannot be written.
    """
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
    with writing(folder):
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
    with writing(path):
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


def read(path: Path) -> Iterator[Record]:
    """Read the records of a file; an incomplete last line is ignored.

    If several records have the same key, only the last is returned, in the place of the first.

    Raises:
        RecordError: the file cannot be read, or a line is damaged, not attnbench's, or of another
            version.
    """
    yield from {(r.run, *r.key): r for r in _lines(path, content_of(path))}.values()


def content_of(path: Path) -> bytes:
    """The content of a file.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from None


def _lines(path: Path, content: bytes) -> Iterator[Record]:
    lines = content.split(b"\n")
    remainder = lines.pop()  # after the last newline: empty, or an incomplete record
    for number, line in enumerate(lines, 1):
        if line.strip():
            text = line.decode("utf-8", errors="replace")
            yield Record.from_json(text, f"{path}, line {number},")
    if remainder.strip() and not _is_torn(remainder):
        yield Record.from_json(remainder.decode("utf-8", errors="replace"), f"{path}, last line,")


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


def read_all(sources: Iterable[Path]) -> list[Record]:
    """Read the records of files and folders, by run and then in the order written.

    Raises:
        RecordError: see :func:`run_files` and :func:`read`.
    """
    return [record for path in run_files(sources) for record in read(path)]
