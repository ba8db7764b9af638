"""The last output of a child process: its last lines, and the user's frames of a crash."""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
from pathlib import Path

_LIBRARIES = ("attnbench", "torch", "hypothesis", "pluggy")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line \d+ in ')
_STACK = ("Fatal Python", "Stack (most recent")
"""How faulthandler begins a stack, of a crash or of a process that hangs."""

_LINES = 12
_WIDTH = 200
"""Characters shown of a line, since a subject may write a megabyte without a newline."""


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """Folders of packages whose frames are not those of a subject."""
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    return tuple(Path(spec.origin).resolve().parent for spec in specs if spec and spec.origin)


@functools.cache
def is_own_code(file: str) -> bool:
    """Whether a frame's file belongs to the user, not to a library or the standard library.

    Whole paths are compared, since a user's folder may be called ``torch``.
    """
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    if any(path.is_relative_to(folder) for folder in _libraries()):
        return False
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    if any(path.is_relative_to(folder) for folder in installed):
        return True
    return not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def last_words(text: str) -> str:
    """The end of a process's standard error, each line prefixed with a bar.

    Of a stack written by ``faulthandler``, the innermost frame and the user's frames are kept.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith(_STACK)), len(lines))
    before, dump = lines[:fatal], lines[fatal:]
    frames = [(line, match["file"]) for line in dump if (match := _FRAME.match(line))]
    crash = dump[:1] + [
        line for i, (line, file) in enumerate(frames) if i == 0 or is_own_code(file)
    ]
    shown = before[-_LINES:] + crash[:_LINES]
    cut = [line if len(line) <= _WIDTH else line[:_WIDTH] + " ..." for line in shown]
    return "".join(f"\n  | {line}" for line in cut)
