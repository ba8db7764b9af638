"""Files that commands write: checked before the work begins, and never left incomplete."""

from __future__ import annotations

from pathlib import Path

from attnbench.errors import UsageError


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be written, before the work for it begins.

    Raises:
        UsageError: the folder does not exist or is not writable.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {folder}.")
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a folder; name a file in it.")
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, option, error) from None


def write_file(path: Path, content: bytes, option: str) -> None:
    """Write a file; a new file is removed if it could not be written completely.

    Raises:
        UsageError: the file cannot be written.
    """
    is_new = not path.exists()
    try:
        with path.open("wb") as file:
            file.write(content)
    except OSError as error:
        if is_new:
            path.unlink(missing_ok=True)
        raise _unwritable(path, option, error) from None


def _unwritable(path: Path, option: str, error: OSError) -> UsageError:
    return UsageError(
        f"{option} {path}: cannot write this file: {error.strerror or error}. Name another place."
    )
