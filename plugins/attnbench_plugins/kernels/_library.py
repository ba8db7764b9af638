"""The library of the loops of ``_loops.cpp``, compiled for this processor at first use and cached.

The compiler is ``$CXX``, or the first one found of ``g++``, ``clang++`` and ``c++``. The library is
stored in the user's cache under the hash of everything that it depends on. Without a compiler
:func:`library` warns once and returns ``None``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

from attnbench.testing import note_compiled

__all__ = [
    "NotCompiledWarning",
    "library",
    "library_path",
    "missing_compiler",
    "name_of_processor",
    "refusal",
]

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / name for name in ("_loops.cpp", "_vectors.h", "_attend.h", "_slopes.h")]
_FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
_EXTRA = [["-march=native", "-fopenmp"], ["-march=native"], []]
"""Options tried in turn: Apple's clang has no OpenMP (one thread), old compilers no native."""


class NotCompiledWarning(UserWarning):
    """A kernel runs eagerly, many times slower, because its loops could not be compiled."""


class _Status:
    refusal = ""


def refusal() -> str:
    """Why the loops could not be compiled in this process; empty if they were, or never tried."""
    return _Status.refusal


def _processor() -> str:
    """An identifier of the processor, as far as the compiled code depends on it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    known = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return "\n".join([platform.machine(), platform.processor(), *sorted(set(known))])


def name_of_processor() -> str:
    """A hash of that identifier."""
    return hashlib.sha256(_processor().encode()).hexdigest()[:24]


def _folder() -> Path:
    """The folder of compiled libraries; a temporary one if the user's cache is not available."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "attnbench"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="attnbench-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="attnbench-"))


def _command() -> list[str]:
    names = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), "c++")
    return [*shlex.split(names), *_FLAGS]


@functools.cache
def library_path() -> Path:
    """The path of the library, whether or not it exists."""
    parts = [*(path.read_text() for path in _SOURCES), *_command(), str(_EXTRA), _processor()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return _folder() / f"loops-{key}.so"


def _loaded() -> tuple[ctypes.CDLL, bool]:
    """The library, and whether the cache had it; what a crash left damaged is compiled again."""
    path = library_path()
    if path.exists():
        try:
            if _is_whole(path):
                return ctypes.CDLL(str(path)), True
        except OSError:
            pass
        path.unlink(missing_ok=True)
    _compile(path)
    return ctypes.CDLL(str(path)), False


def _is_whole(path: Path) -> bool:
    """Whether an ELF file has its end; the loader maps one that was cut off, and dies of SIGBUS."""
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or not head.startswith(b"\x7fELF\x02\x01"):
        return True  # of another kind; the loader itself says what is wrong with it
    table, size, count = struct.unpack_from("<Q10xHH", head, 40)
    return bool(path.stat().st_size >= table + size * count)


def _compile(path: Path) -> None:
    command = _command()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for extra in _EXTRA:
            run = subprocess.run(  # noqa: S603  # the user's own compiler
                [*command, *extra, str(_SOURCES[0]), "-o", str(made)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode == 0 and made.exists():
                made.replace(path)  # atomic: other processes see all of it or nothing
                return
    said = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
    raise OSError(f"{shlex.join(command[:1])}: {said[0]}")


def missing_compiler() -> str:
    """The name of the compiler if there is none of that name; else empty."""
    name = _command()[0]
    return "" if shutil.which(name) else name


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops; ``None``, with one warning, if they do not compile."""
    started = time.perf_counter()
    try:
        loaded, cached = _loaded()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        _Status.refusal = f"the loops could not be compiled ({error})"
        warnings.warn(
            f"attnbench's kernels run eagerly, many times slower: their loops could not be "
            f"compiled ({error}). They need GCC or clang; set CXX to the compiler.",
            NotCompiledWarning,
            stacklevel=2,
        )
        return None
    note_compiled(time.perf_counter() - started, cached=cached)
    loaded.describe_variant.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    loaded.describe_variant.restype = None
    for name, pointers in (("attend", 7), ("slopes", 7)):
        for kind in ("single", "double"):
            function = getattr(loaded, f"{name}_{kind}")
            function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_double, ctypes.c_void_p]
            function.restype = None
    return loaded
