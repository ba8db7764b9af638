"""Where the user's code raised, and the last output of a child process: lines and frames."""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
import traceback
from pathlib import Path

from attnbench.distributions import MACHINERY

_LIBRARIES = (*MACHINERY, "torch", "hypothesis", "pluggy")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line \d+ in ')
_STACK = ("Fatal Python", "Stack (most recent")
"""The first words of a stack by faulthandler, of a crash or of a hanging process."""

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


def source_line_of(error: BaseException) -> str | None:
    """The file and line of the user's innermost code that raised an exception, if there is any.

    The path is relative if the file is below the current folder, and its name alone if not.
    """
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    own = [(file, line) for file, line in places if is_own_code(file)]
    if not own:
        return None
    file, line = own[-1]
    path, folder = Path(file).resolve(), Path.cwd()
    name = path.relative_to(folder) if path.is_relative_to(folder) else path.name
    return f"{name}:{line}"


def last_words(text: str) -> str:
    """The end of a process's standard error, each line prefixed with a bar.

    A stack by ``faulthandler`` is reduced to the innermost frame and the user's frames.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    stack_start = next((i for i, line in enumerate(lines) if line.startswith(_STACK)), len(lines))
    output, stack = lines[:stack_start], lines[stack_start:]
    frames = [(line, match["file"]) for line in stack if (match := _FRAME.match(line))]
    crash = stack[:1] + [
        line for i, (line, file) in enumerate(frames) if i == 0 or is_own_code(file)
    ]
    selection = output[-_LINES:] + crash[:_LINES]
    lines_shown = [line if len(line) <= _WIDTH else line[:_WIDTH] + " ..." for line in selection]
    return "".join(f"\n  | {line}" for line in lines_shown)
